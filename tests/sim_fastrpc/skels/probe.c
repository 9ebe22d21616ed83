/*
 * A skel whose methods look at the PD they run in.  Each takes at most one in buffer of words and
 * one out buffer of words; METHODS of tests/sim_fastrpc/rpc.py has their numbers.
 */
#include "dsp.h"

static int opens, closes;
static char uri[256];
static uint8_t *kept;

typedef struct {
    uint32_t in_bytes, out_bytes;
    uint32_t *in, *out;
} words;

static int sum_of(const uint8_t *at, uint32_t bytes)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        sum += at[i];
    }
    return (int) sum;
}

/* out = in, every byte inverted; the value returned is the difference of their sizes. */
static int invert(const words *w)
{
    const uint8_t *in = (const uint8_t *) w->in;
    uint8_t *out = (uint8_t *) w->out;
    for (uint32_t i = 0; i < w->in_bytes && i < w->out_bytes; i++) {
        out[i] = (uint8_t) ~in[i];
    }
    return (int) (w->out_bytes - w->in_bytes);
}

/* What the skel's open got, and how often. */
static int about(const words *w)
{
    w->out[0] = (uint32_t) opens;
    w->out[1] = (uint32_t) closes;
    for (uint32_t i = 0; i < sizeof(uri) && i + 8 < w->out_bytes; i++) {
        ((char *) w->out)[8 + i] = uri[i];
    }
    return 0;
}

/* in: fd, bytes, offset.  out: sum of the bytes, whose first becomes its complement. */
static int sum_mapped(const words *w)
{
    uint8_t *at = HAP_mmap(NULL, (int) w->in[1], 3, 0, (int) w->in[0], (long) w->in[2]);
    if (at == (void *) -1) {
        return 1000;
    }
    w->out[0] = (uint32_t) sum_of(at, w->in[1]);
    at[0] = (uint8_t) ~at[0];
    return HAP_munmap(at, (int) w->in[1]);
}

/* As sum_mapped, for memory that the host has mapped itself. */
static int sum_got(const words *w)
{
    void *at;
    int result = HAP_mmap_get((int) w->in[0], &at, NULL);
    if (result == 0) {
        w->out[0] = (uint32_t) sum_of(at, w->in[1]);
        result = HAP_mmap_put((int) w->in[0]);
    }
    return result;
}

/* in: fd, bytes.  Keep it mapped; the skel's close marks the last that was. */
static int keep(const words *w)
{
    void *at = HAP_mmap(NULL, (int) w->in[1], 3, 0, (int) w->in[0], 0);
    kept = at != (void *) -1 ? at : kept;
    return at == (void *) -1;
}

/* in: offset, value, cache operation before reading or 9, after writing or 9.  out: the byte there
 * before. */
static int touch_kept(const words *w)
{
    if (w->in[2] != 9) {
        qurt_mem_cache_clean(kept + w->in[0], 1, (int) w->in[2], 1);
    }
    w->out[0] = kept[w->in[0]];
    kept[w->in[0]] = (uint8_t) w->in[1];
    return w->in[3] != 9 ? qurt_mem_cache_clean(kept + w->in[0], 1, (int) w->in[3], 1) : 0;
}

static int drop_kept(const words *w)
{
    int result = HAP_munmap(kept, (int) w->in[0]);
    kept = NULL;
    return result;
}

/* in: bytes, least.  out: total, available before, granted, available after, first word. */
static int use_vtcm(const words *w)
{
    compute_res_attr_t request;
    void *at = NULL;
    compute_resource_query_VTCM(0, &w->out[0], NULL, &w->out[1], NULL);
    compute_resource_attr_init(&request);
    compute_resource_attr_set_vtcm_param_v2(&request, w->in[0], w->in[0], w->in[1]);
    uint32_t id = compute_resource_acquire(&request, 1000);
    if (!id) {
        return 1001;
    }
    compute_resource_attr_get_vtcm_ptr_v2(&request, &at, &w->out[2]);
    compute_resource_query_VTCM(0, NULL, NULL, &w->out[3], NULL);
    w->out[4] = *(uint32_t *) at;
    int result = compute_resource_release(id);
    if (w->in[2]) {
        w->out[4] = *(volatile uint32_t *) at; /* no longer ours */
    }
    return result;
}

static int vote(const words *w)
{
    uint64_t request[8] = {0};
    (void) w;
    return HAP_power_set(&opens, request);
}

/* in: depth in KiB.  Use that much stack. */
__attribute__((noinline)) static int use_stack(uint32_t kib, volatile uint8_t *above)
{
    volatile uint8_t room[1024];
    room[0] = (uint8_t) kib;
    above[1023] = room[0];
    return kib ? use_stack(kib - 1, room) + above[1023] : 0;
}

static int stack(const words *w)
{
    volatile uint8_t room[1024];
    use_stack(w->in[0], room);
    return 0;
}

static int heap(const words *w)
{
    uint8_t *at = malloc(w->in[0]);
    if (!at) {
        return 1002;
    }
    w->out[0] = at[0];
    at[w->in[0] - 1] = 1;
    free(at);
    if (w->in[1]) {
        free(at);
    }
    return 0;
}

/* in: room for text.  out: its length, then the text. */
static int print(const words *w)
{
    char *text = (char *) &w->out[1];
    w->out[0] =
        (uint32_t) snprintf(text, w->in[0], "%d|%5u|%-4x|%08X|%s|%c|%lld|%.3f|%p|%%", -7, 42u,
                            0xabu, 0xbeefu, "text", 'z', -5000000000ll, 3.14159, (void *) 0x10);
    HAP_debug_v2(2, "probe.c", 1, "printed %u bytes", w->out[0]);
    return 0;
}

/* in: iterations, of one packet each. */
static int work(const words *w)
{
    uint32_t a = 1;
    __asm__ volatile("loop0(1f, %1)\n"
                     "1: { %0 = add(%0, #1) }:endloop0"
                     : "+r"(a)
                     : "r"(w->in[0])
                     : "lc0", "sa0", "usr");
    return a == 0;
}

static int machine(const words *w)
{
    w->out[0] = (uint32_t) qurt_hvx_get_units();
    return 0;
}

static int sleep(const words *w)
{
    return qurt_timer_sleep(w->in[0]);
}

static int crash(const words *w)
{
    *(volatile uint32_t *) w->in[0] = 1;
    return 0;
}

static int status(const words *w)
{
    return (int) w->in[0];
}

static int (*const methods[])(const words *) = {
    invert, about, sum_mapped, sum_got, keep,    touch_kept, drop_kept, use_vtcm, vote,
    stack,  heap,  print,      work,    machine, sleep,      crash,     status,
};

static void note_uri(const char *text, uint32_t bytes)
{
    for (uint32_t i = 0; i < sizeof(uri) && i < bytes; i++) {
        uri[i] = text[i];
    }
}

EXPORT int probe_skel_handle_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments)
{
    uint32_t method = scalars >> 24 & 31, in = scalars >> 16 & 255, out = scalars >> 8 & 255;
    if (scalars == 0x00020001) {
        opens++;
        note_uri(arguments[1].buffer.at, arguments[1].buffer.bytes);
        arguments[2].handle = 0x0123456789abcdefull;
        return 0;
    }
    if (handle != 0x0123456789abcdefull) {
        return 1003;
    }
    if (scalars == 0x01000010) {
        closes++;
        if (kept) {
            kept[0] = 0xc1;
        }
        return arguments[0].handle == handle ? 0 : 1004;
    }
    if (method - 2 >= sizeof(methods) / sizeof(methods[0])) {
        return UNKNOWN_METHOD;
    }
    words w = {0};
    if (in) {
        w.in = arguments[0].buffer.at;
        w.in_bytes = arguments[0].buffer.bytes;
    }
    if (out) {
        w.out = arguments[in].buffer.at;
        w.out_bytes = arguments[in].buffer.bytes;
    }
    return methods[method - 2](&w);
}
