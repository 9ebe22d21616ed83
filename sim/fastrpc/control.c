/*
 * remote_session_control and remote_handle_control: numbered requests, each with its struct.
 * Source: qualcomm/fastrpc inc/remote.h.  Answers that need no hardware were recorded from version
 * 1.0.5, built for the upstream kernel interface.
 */
#define _GNU_SOURCE
#include "sim.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { ALL_DOMAINS = -1, DOMAIN_IDS = DOMAINS * SESSIONS };
enum { NODE_DOMAINS = 7 }; /* adsp to gdsp1 */

static bool unsigned_asked[DOMAIN_IDS], reserved[DOMAIN_IDS];

bool want_unsigned(int domain)
{
    return unsigned_asked[domain];
}

void reserve_domain(int domain, bool on)
{
    reserved[domain] = on;
}

/* --- structs --------------------------------------------------------------------------------- */

typedef struct {
    int domain, priority, stack_bytes;
} thread_parameters;

typedef struct {
    int domain, value;
} domain_value;

typedef struct {
    char *domain_name;
    uint32_t domain_bytes;
    char *session_name;
    uint32_t session_bytes, effective_domain, session;
} reserve_session;

typedef struct {
    char *domain_name;
    uint32_t domain_bytes, session, effective_domain;
} effective_domain;

typedef struct {
    char *domain_name;
    uint32_t domain_bytes, session;
    char *module;
    uint32_t module_bytes;
    char *uri;
    uint32_t uri_bytes;
} get_uri;

typedef struct {
    void *context;
    int domain;
    void *call;
} notification;

typedef struct {
    uint32_t *domains, count;
    uint64_t flags, context;
} new_context;

typedef struct {
    uint64_t context, flags;
} old_context;

typedef struct {
    uint32_t enable, microseconds;
} latency;

typedef struct {
    uint32_t domain, attribute, value;
} capability;

_Static_assert(sizeof(reserve_session) == 40 && sizeof(effective_domain) == 24 &&
                   sizeof(get_uri) == 48 && sizeof(notification) == 24 && sizeof(new_context) == 32,
               "as in remote.h");

/* --- session requests ------------------------------------------------------------------------ */

static bool is_domain(int domain)
{
    return domain == ALL_DOMAINS || (domain >= 0 && domain < DOMAIN_IDS);
}

static bool is_open(int domain)
{
    const session *s = session_of(domain);
    return s && (s->state == LIVE || s->state == DEAD);
}

static bool chosen(int asked, int domain)
{
    return asked == ALL_DOMAINS || asked == domain;
}

static int set_threads(void *data)
{
    const thread_parameters *p = data;
    bool priority = p->priority == -1 || (p->priority >= 1 && p->priority <= 255);
    bool stack = p->stack_bytes == -1 || (p->stack_bytes >= 16 << 10 && p->stack_bytes <= 8 << 20);
    if (!is_domain(p->domain) || !priority || !stack) {
        return AEE_EBADPARM;
    }
    for (int domain = 0; domain < DOMAIN_IDS; domain++) {
        session *s = chosen(p->domain, domain) ? session_of(domain) : NULL;
        if (s && p->stack_bytes > 0) {
            s->stack = (uint32_t) p->stack_bytes;
        }
    }
    return AEE_SUCCESS;
}

static int set_unsigned(void *data)
{
    const domain_value *v = data;
    bool on = v->value != 0;
    if (!is_domain(v->domain)) {
        return AEE_EBADPARM;
    }
    for (int domain = 0; domain < DOMAIN_IDS; domain++) {
        if (chosen(v->domain, domain) && is_open(domain) &&
            (int) session_of(domain)->unsigned_pd != v->value) {
            return AEE_EALREADYLOADED; /* also if both values are nonzero and differ */
        }
    }
    for (int domain = 0; domain < DOMAIN_IDS; domain++) {
        unsigned_asked[domain] = chosen(v->domain, domain) ? on : unsigned_asked[domain];
    }
    return AEE_SUCCESS;
}

static int shift_priority(void *data)
{
    const domain_value *v = data;
    return is_domain(v->domain) ? AEE_SUCCESS : AEE_EBADPARM;
}

/* Close the session of a domain.  The real library crashes if a handle is open.  For ALL_DOMAINS
 * the real library closes nothing, because it stops at the first domain without a session. */
static int close_session(void *data)
{
    int domain = *(const int *) data;
    if (!is_open(domain)) {
        return -1;
    }
    session *s = session_of(domain);
    if (session_used(s) && settings()->faithful) {
        raise(SIGSEGV);
    }
    if (session_used(s)) {
        report("FASTRPC_SESSION_CLOSE crashes the real library while a handle is open");
        return AEE_EBADSTATE;
    }
    session_stop(s);
    return AEE_SUCCESS;
}

static int pd_dump(void *data)
{
    const domain_value *v = data;
    if (!is_domain(v->domain)) {
        return AEE_EBADPARM;
    }
    bool some = false;
    for (int domain = 0; domain < DOMAIN_IDS; domain++) {
        some = some || (chosen(v->domain, domain) && is_open(domain));
    }
    return some ? AEE_ERPC : AEE_SUCCESS;
}

/* Kill the PD: the upstream driver has no such request. */
static int kill_process(void *data)
{
    return is_open(*(const int *) data) ? AEE_EUNSUPPORTED : AEE_ERPC;
}

/* Make the PD crash. */
static int raise_exception(void *data)
{
    int domain = *(const int *) data;
    session *s = session_of(domain);
    if (domain < 0 || domain >= DOMAIN_IDS) {
        return AEE_EBADPARM;
    }
    if (!s || s->state != LIVE) {
        return AEE_ERPC;
    }
    session_kill(s, AEE_ENOSUCH, DSP_EBADSTATE);
    return AEE_SUCCESS;
}

static int process_type(void *data)
{
    domain_value *v = data;
    if (v->domain < 0 || v->domain >= DOMAIN_IDS) {
        return AEE_EBADPARM;
    }
    v->value = is_open(v->domain) ? session_of(v->domain)->unsigned_pd : unsigned_asked[v->domain];
    return AEE_SUCCESS;
}

static int set_init_memory(void *data)
{
    const domain_value *v = data;
    if (!is_domain(v->domain)) {
        return AEE_EBADPARM;
    }
    if (v->domain != ALL_DOMAINS && unsigned_asked[v->domain]) {
        return AEE_EUNSUPPORTED; /* an unsigned PD always has 5 MiB */
    }
    bool some = false;
    for (int domain = 0; domain < DOMAIN_IDS; domain++) {
        some = some || (chosen(v->domain, domain) && !unsigned_asked[domain]);
    }
    if (!some) {
        return AEE_SUCCESS; /* ALL_DOMAINS skips domains with unsigned PDs */
    }
    return v->value >= 3 << 20 && v->value <= 200 << 20 ? AEE_SUCCESS : AEE_EBADPARM;
}

static int name_of_domain(const char *name, uint32_t bytes)
{
    return name ? uri_domain_number(name, bytes) : -1;
}

static int reserve(void *data)
{
    reserve_session *r = data;
    int domain = name_of_domain(r->domain_name, r->domain_bytes);
    if (domain < 0 || !r->session_name || !r->session_bytes) {
        return AEE_EBADPARM;
    }
    uint32_t number = 1;
    while (number < SESSIONS && reserved[(uint32_t) domain + DOMAINS * number]) {
        number++;
    }
    if (number < SESSIONS) {
        reserve_domain(domain + DOMAINS * (int) number, true);
    }
    r->session = number; /* if no number is left, the real library writes 4 and 32 */
    r->effective_domain = number < SESSIONS ? (uint32_t) domain + DOMAINS * number : DOMAIN_IDS;
    return number < SESSIONS ? AEE_SUCCESS : AEE_ENOSESSION;
}

static int tell_domain(void *data)
{
    effective_domain *e = data;
    int domain = name_of_domain(e->domain_name, e->domain_bytes);
    if (domain < 0 || e->session >= SESSIONS) {
        return AEE_EBADPARM;
    }
    e->effective_domain = (uint32_t) domain + DOMAINS * e->session;
    return AEE_SUCCESS;
}

static int tell_uri(void *data)
{
    get_uri *g = data;
    int domain = name_of_domain(g->domain_name, g->domain_bytes);
    if (domain < 0 || g->session >= SESSIONS || !g->module || !g->module_bytes || !g->uri ||
        g->uri_bytes <= g->module_bytes) {
        return AEE_EBADPARM;
    }
    int length = snprintf(g->uri, g->uri_bytes, "%s&_dom=%s&_session=%u", g->module,
                          uri_domain_name(domain), (unsigned) g->session);
    return length < (int) g->uri_bytes ? AEE_SUCCESS : AEE_EBADSIZE;
}

/* Refuse a request for notifications: no simulated PD sends notifications. */
static int notify(void *data)
{
    const notification *n = data;
    return is_domain(n->domain) && n->domain >= 0 ? AEE_EUNSUPPORTED : AEE_EBADPARM;
}

/* Refuse a context over several DSPs: the upstream driver has no such request. */
static int create_context(void *data)
{
    const new_context *c = data;
    bool good = c->domains && !c->flags && c->count && c->count < DOMAIN_IDS;
    return good ? AEE_EUNSUPPORTED : AEE_EBADPARM;
}

static int destroy_context(void *data)
{
    return ((const old_context *) data)->flags ? AEE_EBADPARM : AEE_EBADCONTEXT;
}

/* Indexed by request number.  Missing requests are unknown, or the upstream driver does not support
 * them. */
static const struct {
    uint32_t bytes;
    int (*serve)(void *data);
} session_requests[] = {
    [1] = {sizeof(thread_parameters), set_threads},
    [2] = {sizeof(domain_value), set_unsigned},
    [4] = {sizeof(domain_value), shift_priority},
    [6] = {sizeof(int), kill_process},
    [7] = {sizeof(int), close_session},
    [8] = {sizeof(domain_value), pd_dump},
    [9] = {sizeof(int), raise_exception},
    [10] = {sizeof(domain_value), process_type},
    [11] = {sizeof(notification), notify},
    [12] = {sizeof(domain_value), set_init_memory},
    [13] = {sizeof(reserve_session), reserve},
    [14] = {sizeof(effective_domain), tell_domain},
    [15] = {sizeof(get_uri), tell_uri},
    [17] = {sizeof(new_context), create_context},
    [18] = {sizeof(old_context), destroy_context},
};

int remote_session_control(uint32_t request, void *data, uint32_t bytes)
{
    if (request >= sizeof(session_requests) / sizeof(session_requests[0]) ||
        !session_requests[request].serve) {
        return AEE_EUNSUPPORTED;
    }
    if (!data || bytes != session_requests[request].bytes) {
        return AEE_EBADPARM;
    }
    pthread_mutex_lock(&sim_lock);
    int result = session_requests[request].serve(data);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* --- capabilities ---------------------------------------------------------------------------- */

enum {
    ATTRIBUTE_DOMAIN = 0,
    ATTRIBUTE_UNSIGNED = 1,
    ATTRIBUTE_HVX_128 = 3,
    ATTRIBUTE_VTCM_PAGE = 4,
    ATTRIBUTE_VTCM_COUNT = 5,
    ATTRIBUTE_ARCH = 6,
    ATTRIBUTES = 260
};

static uint32_t attribute(uint32_t which)
{
    const sim_settings *set = settings();
    switch (which) {
    case ATTRIBUTE_UNSIGNED:
        return set->unsigned_pd;
    case ATTRIBUTE_HVX_128:
        return set->machine.hvx;
    case ATTRIBUTE_VTCM_PAGE:
        return set->machine.vtcm;
    case ATTRIBUTE_VTCM_COUNT:
        return set->machine.vtcm != 0;
    case ATTRIBUTE_ARCH:
        return set->machine.arch;
    default:
        return 0; /* no HMX, asynchronous calls, notifications or driver signals */
    }
}

static int dsp_info(void *data)
{
    capability *c = data;
    if (!c || c->domain >= DOMAIN_IDS || c->attribute >= ATTRIBUTES) {
        return AEE_EBADPARM;
    }
    bool listed = c->domain % DOMAINS == CDSP; /* the remoteproc is listed even while it is down */
    c->value = 0;
    if (c->attribute == ATTRIBUTE_DOMAIN) {
        c->value = listed;
        return AEE_SUCCESS;
    }
    if (!listed || !dsp_present()) {
        errno = ENOENT;
        return AEE_ECONNREFUSED;
    }
    c->value = attribute(c->attribute);
    return AEE_SUCCESS;
}

/* --- handle requests ------------------------------------------------------------------------- */

enum { CONTROL_LATENCY = 1, CONTROL_DSP_INFO = 2, CONTROL_WAKELOCK = 3, CONTROL_GET_DOMAIN = 4 };
enum { LATENCY_OFF, LATENCY_PM_QOS, LATENCY_ADAPTIVE, LATENCY_POLL };
enum { LONGEST_POLL_US = 10000 };

/* Switch polling for answers on or off: the upstream driver has no such request.  Without a handle,
 * the real library starts a session before it calls the driver. */
static int set_polling(int domain, bool with_handle, uint32_t microseconds)
{
    session *s;
    int result = with_handle ? AEE_SUCCESS : session_use(domain, &s);
    if (result != AEE_SUCCESS) {
        return result;
    }
    if (!with_handle) {
        pthread_mutex_lock(&sim_lock);
        session_leave(s);
        pthread_mutex_unlock(&sim_lock);
    }
    return microseconds < LONGEST_POLL_US ? AEE_EUNSUPPORTED : AEE_EBADPARM;
}

static int set_latency(int domain, bool with_handle, const latency *l)
{
    switch (l->enable) {
    case LATENCY_PM_QOS:
    case LATENCY_ADAPTIVE:
        return AEE_SUCCESS;
    case LATENCY_OFF:
    case LATENCY_POLL:
        return set_polling(domain, with_handle, l->microseconds);
    default:
        return AEE_EBADPARM;
    }
}

static int control(int domain, bool with_handle, uint32_t request, void *data, uint32_t bytes)
{
    static const uint32_t sizes[] = {
        [CONTROL_LATENCY] = sizeof(latency),
        [CONTROL_WAKELOCK] = sizeof(uint32_t),
        [CONTROL_GET_DOMAIN] = sizeof(int),
    };
    bool known = request < sizeof(sizes) / sizeof(sizes[0]);
    if (known && sizes[request] && (!data || bytes != sizes[request])) {
        return AEE_EBADPARM;
    }
    int result = AEE_SUCCESS;
    switch (request) {
    case CONTROL_LATENCY:
        return set_latency(domain, with_handle, data);
    case CONTROL_DSP_INFO:
        pthread_mutex_lock(&sim_lock);
        result = dsp_info(data);
        pthread_mutex_unlock(&sim_lock);
        return result;
    case CONTROL_WAKELOCK: /* only Android's kernels have wake locks */
        return *(const uint32_t *) data ? AEE_EUNSUPPORTEDAPI : AEE_SUCCESS;
    case CONTROL_GET_DOMAIN:
        *(int *) data = domain;
        return AEE_SUCCESS;
    default:
        return AEE_EUNSUPPORTED;
    }
}

int remote_handle_control(uint32_t request, void *data, uint32_t bytes)
{
    return control(CDSP, false, request, data, bytes);
}

int remote_handle64_control(uint64_t handle, uint32_t request, void *data, uint32_t bytes)
{
    int domain = handle_domain(handle);
    return domain < 0 ? AEE_EINVHANDLE : control(domain, true, request, data, bytes);
}
