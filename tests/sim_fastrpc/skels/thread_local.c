/* Has thread-local variables, and divides and saves registers by functions of the shell.  The skel
 * is linked without npurt's own functions for the compiler. */
#include "dsp.h"

typedef struct {
    uint64_t before;
    uint32_t counter;
    uint32_t zeros[300];
} state;

static __thread state own = {.before = 0x1122334455667788, .counter = 40};
EXPORT __thread uint8_t last_byte = 9;

/* Return the sum of all bytes of the variables, and change some of them. */
static uint32_t use(uint32_t step)
{
    uint32_t sum = (uint32_t) own.before + (uint32_t) (own.before >> 32) + last_byte;
    for (int i = 0; i < 300; i++) {
        sum += own.zeros[i];
    }
    own.zeros[299] = 5;
    own.counter += step;
    last_byte++;
    return sum + own.counter;
}

static uint32_t seen[2];
static char stack[16384] __attribute__((aligned(8)));

static void other_thread(void *argument)
{
    seen[0] = use((uint32_t) argument);
    seen[1] = use((uint32_t) argument);
    qurt_thread_exit(0);
}

/* in: step.  out: what two uses in this thread and two in a new thread return. */
static int variables(const uint32_t *in, uint32_t *out)
{
    out[0] = use(in[0]);
    out[1] = use(in[0]);
    uint32_t id;
    int status;
    qurt_thread_attr_t attributes = {.name = "other",
                                     .priority = 100,
                                     .bus_priority = 255,
                                     .timetest_id = 0xfffe,
                                     .stack_size = sizeof(stack),
                                     .stack_addr = stack,
                                     .detach_state = 1};
    if (qurt_thread_create(&id, &attributes, other_thread, (void *) in[0])) {
        return 1;
    }
    qurt_thread_join(id, &status);
    out[2] = seen[0];
    out[3] = seen[1];
    return 0;
}

__attribute__((noinline)) static uint32_t step_of(uint32_t a, uint32_t b)
{
    return a * 31 + b;
}

/* Keeps many values in registers over calls, so that the compiler saves r16 to r27. */
__attribute__((noinline)) static uint32_t keep(const uint32_t *in)
{
    uint32_t a = in[0], b = in[1], c = in[2], d = in[3], e = in[4], f = in[5], g = in[6];
    for (int i = 0; i < 3; i++) {
        a = step_of(a, b);
        b = step_of(b, c);
        c = step_of(c, d);
        d = step_of(d, e);
        e = step_of(e, f);
        f = step_of(f, g);
        g = step_of(g, a);
    }
    return a ^ b ^ c ^ d ^ e ^ f ^ g;
}

/* in: 8 words.  out: quotients and remainders of 32 and 64 bits, with and without a sign; keep(). */
static int divide(const uint32_t *in, uint32_t *out)
{
    uint64_t a = (uint64_t) in[1] << 32 | in[0], b = (uint64_t) in[3] << 32 | in[2];
    uint64_t wide[4] = {a / b, a % b, (uint64_t) ((int64_t) a / (int64_t) b),
                        (uint64_t) ((int64_t) a % (int64_t) b)};
    out[0] = in[0] / in[2];
    out[1] = in[0] % in[2];
    out[2] = (uint32_t) ((int32_t) in[0] / (int32_t) in[2]);
    out[3] = (uint32_t) ((int32_t) in[0] % (int32_t) in[2]);
    for (int i = 0; i < 4; i++) {
        out[4 + 2 * i] = (uint32_t) wide[i];
        out[5 + 2 * i] = (uint32_t) (wide[i] >> 32);
    }
    out[12] = keep(in);
    return 0;
}

EXPORT int thread_local_skel_handle_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments)
{
    (void) handle;
    const uint32_t *in = arguments[0].buffer.at;
    switch (scalars >> 24) {
    case 2:
        return variables(in, arguments[1].buffer.at);
    case 3:
        return divide(in, arguments[1].buffer.at);
    default:
        return scalars >> 24 < 2 ? 0 : UNKNOWN_METHOD;
    }
}
