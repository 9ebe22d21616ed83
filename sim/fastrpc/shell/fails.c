/*
 * Calls that fail on request: the setting `fails` names one call of a skel, which then returns a
 * failure of its header without any effect.
 */
#include "hap.h"
#include "libc.h"
#include "qurt.h"

enum {
    QURT_EFAILED = 12,
    QURT_EALIGN = 32,
    QUEUE_BAD_STATE = 0x0d, /* AEE_EBADSTATE; the codes of queues have no offset */
    QUEUE_EXPIRED = 0x0c,   /* AEE_EEXPIRED */
    QUEUE_BAD_ITEM = 0x10,  /* AEE_EBADITEM */
};

static const struct {
    const char *name;
    int32_t result;
} failures[] = {
    {"HAP_mmap", -1},
    {"HAP_munmap", DSP_NO_MAP},
    {"HAP_power_set", -1},
    {"__wrap_malloc", 0},
    {"compute_resource_acquire", 0},
    {"compute_resource_attr_get_vtcm_ptr", 0},
    {"compute_resource_attr_init", DSP_BAD_PARAMETER},
    {"compute_resource_attr_set_vtcm_param", DSP_BAD_PARAMETER},
    {"compute_resource_release", DSP_BAD_PARAMETER},
    {"dspqueue_close", QUEUE_BAD_STATE},
    {"dspqueue_import", QUEUE_BAD_STATE},
    {"dspqueue_read_noblock", QUEUE_BAD_ITEM},
    {"dspqueue_write", QUEUE_EXPIRED},
    {"qurt_futex_wait", QURT_EINVALID},
    {"qurt_hvx_get_units", -1},
    {"qurt_mem_cache_clean", QURT_EALIGN},
    {"qurt_thread_create", QURT_EFAILED},
    {"qurt_thread_get_priority", -1},
    {"qurt_thread_join", QURT_ENOTHREAD},
};

/* The call in question; the order of the members is known to fail_in_turn(). */
static struct {
    uint32_t calls, first, last; /* the calls `first` to `last` fail */
    int32_t result;
    void *function;
} turn __attribute__((used));

/* Count a call; return `result` in its turn, else run `function`.  The function gets all arguments,
 * because only registers change that no argument uses. */
__attribute__((naked)) static void fail_in_turn(void)
{
    __asm__ volatile("{ r6 = ##turn }\n"
                     "{ r7 = memw(r6+#0) }\n"
                     "{ r7 = add(r7,#1) }\n"
                     "{ memw(r6+#0) = r7; r8 = memw(r6+#4) }\n"
                     "{ r9 = memw(r6+#8); p0 = cmp.gtu(r8,r7) }\n"
                     "{ r28 = memw(r6+#16); p1 = cmp.gtu(r7,r9) }\n"
                     "{ p0 = or(p0,p1) }\n"
                     "{ if (p0) jumpr r28 }\n"
                     "{ r0 = memw(r6+#12); jumpr r31 }\n");
}

void *failing(const char *name, void *function)
{
    const link_machine *machine = &shared->machine;
    if (strcmp(name, machine->fails)) {
        return function;
    }
    for (uint32_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
        if (strcmp(name, failures[i].name) == 0) {
            turn.first = machine->fails_first;
            turn.last = machine->fails_last;
            turn.result = failures[i].result;
            turn.function = function;
            return (void *) fail_in_turn;
        }
    }
    die("fails=%s: this call cannot fail", name);
}
