/*
 * VTCM from the compute resource manager.  Granted memory is filled with a pattern, and released
 * memory becomes inaccessible: an access to VTCM that is not granted ends the PD.
 */
#include "hap.h"

enum { CONTEXTS = 8, GRAIN = 1 << 16, FIRST_ID = 0x100 };
#define PATTERN 0xa5a5a5a5u

typedef struct {
    uint32_t at, bytes; /* multiples of GRAIN */
    bool taken;
} context;

static context contexts[CONTEXTS];
static uint8_t *vtcm;
static uint32_t changes; /* number of releases; a futex */
static lock table;

static uint32_t grains(uint32_t bytes)
{
    return (bytes + GRAIN - 1) & ~(uint32_t) (GRAIN - 1);
}

static bool is_free(uint32_t at, uint32_t bytes)
{
    for (int i = 0; i < CONTEXTS; i++) {
        const context *c = &contexts[i];
        if (c->taken && at < c->at + c->bytes && c->at < at + bytes) {
            return false;
        }
    }
    return true;
}

/* Return the size of the largest free range, at most *most* bytes, and its start in *at*; 0: no
 * VTCM is free. */
static uint32_t largest_free(uint32_t most, uint32_t *at)
{
    uint32_t size = shared->machine.vtcm & ~(uint32_t) (GRAIN - 1);
    for (uint32_t bytes = most < size ? most : size; bytes; bytes -= GRAIN) {
        for (uint32_t start = 0; start + bytes <= size; start += GRAIN) {
            if (is_free(start, bytes)) {
                *at = start;
                return bytes;
            }
        }
    }
    return 0;
}

static void set_access(const context *c, int protection)
{
    int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    sys_map(vtcm + c->at, c->bytes, protection, fixed, -1);
    for (uint32_t i = 0; protection && i < c->bytes; i += 4) {
        *(uint32_t *) (vtcm + c->at + i) = PATTERN;
    }
}

bool vtcm_contains(uint32_t address)
{
    return vtcm && address - (uint32_t) vtcm < grains(shared->machine.vtcm);
}

/* --- requests -------------------------------------------------------------------------------- */

int compute_resource_attr_init(resource_request *request)
{
    *request = (resource_request){0};
    return 0;
}

int compute_resource_attr_set_serialize(resource_request *request, uint8_t on)
{
    (void) request;
    (void) on;
    return 0;
}

int compute_resource_attr_set_hmx_param(resource_request *request, uint8_t on)
{
    request->hmx = on;
    return 0;
}

int compute_resource_attr_set_cache_mode(resource_request *request, uint8_t on)
{
    (void) request;
    (void) on;
    return 0;
}

int compute_resource_attr_set_app_type(resource_request *request, uint32_t type)
{
    (void) request;
    (void) type;
    return 0;
}

/* Ignore the callback: no release is ever requested, because the PD is the only user. */
int compute_resource_attr_set_release_callback(resource_request *request,
                                               int (*callback)(uint32_t, void *), void *context)
{
    (void) request;
    (void) callback;
    (void) context;
    return 0;
}

int compute_resource_attr_set_vtcm_param(resource_request *request, uint32_t bytes, uint8_t single)
{
    return compute_resource_attr_set_vtcm_param_v2(request, bytes, single ? bytes : 0, bytes);
}

int compute_resource_attr_set_vtcm_param_v2(resource_request *request, uint32_t bytes,
                                            uint32_t page, uint32_t least)
{
    request->size = bytes;
    request->page = page;
    request->least = least ? least : bytes;
    return 0;
}

void *compute_resource_attr_get_vtcm_ptr(resource_request *request)
{
    return (void *) request->address;
}

int compute_resource_attr_get_vtcm_ptr_v2(resource_request *request, void **address,
                                          uint32_t *bytes)
{
    *address = (void *) request->address;
    if (bytes) {
        *bytes = request->bytes;
    }
    return request->address ? 0 : DSP_BAD_PARAMETER;
}

int compute_resource_query_VTCM(uint32_t application, uint32_t *total, vtcm_layout *total_pages,
                                uint32_t *available, vtcm_layout *available_pages)
{
    (void) application;
    uint32_t at, size = shared->machine.vtcm;
    lock_take(&table);
    uint32_t rest = largest_free(size, &at);
    lock_leave(&table);
    if (total) {
        *total = size;
    }
    if (available) {
        *available = rest;
    }
    if (total_pages) {
        *total_pages = (vtcm_layout){size, 1, {{size, 1}}};
    }
    if (available_pages) {
        *available_pages = (vtcm_layout){rest, 1, {{rest, 1}}};
    }
    return 0;
}

/* --- resources ------------------------------------------------------------------------------- */

static bool reserve_vtcm(void)
{
    uint32_t bytes = grains(shared->machine.vtcm);
    if (!vtcm && bytes) {
        vtcm = sys_map(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    }
    return vtcm != NULL;
}

/* Grant VTCM that is free now.  Return the grant's id, or 0 if less than `least` bytes are free. */
static uint32_t try_acquire(resource_request *request)
{
    for (int i = 0; i < CONTEXTS; i++) {
        context *c = &contexts[i];
        uint32_t at = 0, got = c->taken ? 0 : largest_free(grains(request->size), &at);
        if (!got || got < request->least) {
            continue;
        }
        *c = (context){.at = at, .bytes = got, .taken = true};
        set_access(c, PROT_READ | PROT_WRITE);
        request->address = (uint32_t) vtcm + at;
        request->bytes = got;
        return FIRST_ID + (uint32_t) i;
    }
    return 0;
}

/* Refuse a request for HMX, which is not simulated, or for no VTCM at all. */
uint32_t compute_resource_acquire(resource_request *request, uint32_t microseconds)
{
    if (request->hmx || !request->size) {
        say("compute_resource_acquire: %s",
            request->hmx ? "HMX is not simulated" : "no VTCM is requested");
        return 0;
    }
    account_pause();
    uint64_t end = sys_time() + microseconds;
    uint32_t id = 0;
    for (bool more = true; more && !id;) {
        lock_take(&table);
        uint32_t seen = load(&changes);
        id = reserve_vtcm() ? try_acquire(request) : 0;
        lock_leave(&table);
        more = !id && futex_wait_until(OURS, &changes, seen, end);
    }
    account_resume();
    return id;
}

static context *context_of(uint32_t id)
{
    uint32_t index = id - FIRST_ID;
    return index < CONTEXTS && contexts[index].taken ? &contexts[index] : NULL;
}

int compute_resource_release(uint32_t id)
{
    lock_take(&table);
    context *c = context_of(id);
    if (c) {
        set_access(c, PROT_NONE);
        c->taken = false;
        store(&changes, changes + 1);
        futex_wake(OURS, &changes, CONTEXTS);
    }
    lock_leave(&table);
    return c ? 0 : DSP_BAD_PARAMETER;
}

int compute_resource_acquire_cached(uint32_t id, uint32_t microseconds)
{
    (void) microseconds;
    return context_of(id) ? 0 : DSP_BAD_PARAMETER;
}

int compute_resource_release_cached(uint32_t id)
{
    return context_of(id) ? 0 : DSP_BAD_PARAMETER;
}

int compute_resource_check_release_request(uint32_t id)
{
    (void) id;
    return 0;
}
