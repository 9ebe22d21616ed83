/* Start of the shell, and the threads that serve the library's lanes. */
#include "shell.h"

enum { SPINS = 300 }; /* looks at a lane before its thread sleeps */

link_memory *shared;

static int serve(link_lane *lane)
{
    uint32_t *value = lane->value;
    switch (lane->command) {
    case LINK_OPEN:
        return call_open(lane, (const char *) value[0], value[1]);
    case LINK_CLOSE:
        return call_close(lane);
    case LINK_INVOKE:
        return call_invoke(lane);
    case LINK_ATTACH:
        return block_attach(value[0], (int) value[1], value[2], value[3], &value[0]);
    case LINK_DETACH:
        return block_detach(value[0]);
    case LINK_QUEUE:
        return queue_attach(value[0], value[1]);
    case LINK_DROP_QUEUE:
        return queue_drop(value[0]);
    default:
        return DSP_UNSUPPORTED;
    }
}

/* The life of a thread that serves one lane: wait for a request, do it, answer. */
static void serve_lane(void *number)
{
    link_lane *lane = &shared->lane[(uint32_t) number];
    uint32_t done = LINK_ENDED;
    for (;;) {
        for (int i = 0; i < SPINS && load(&lane->asked) == done; i++) {
        }
        while (load(&lane->asked) == done) {
            futex_wait(SHARED, &lane->asked, done);
        }
        done = load(&lane->asked);
        lane->result = serve(lane);
        if (lane->crash) {
            *(volatile uint32_t *) 0 = 0;
        }
        store(&lane->answered, done);
        futex_wake(SHARED, &lane->answered, 1);
    }
}

/* Use what an old qemu lacks, so that it fails now and not in the middle of a kernel. */
static void try_machine(void)
{
    __asm__ volatile("v0 = vsplat(%0)" ::"r"(0) : "v0");
    (void) sys_packets();
}

UNREACHABLE static void shell_main(void)
{
    shared = sys_map(NULL, sizeof(link_memory), PROT_READ | PROT_WRITE, MAP_SHARED, LINK_MEMORY_FD);
    if (!shared) {
        sys_call(SYS_EXIT_GROUP, 1, 0, 0, 0, 0, 0);
    }
    if (shared->machine.version != LINK_VERSION) {
        die("the shell and the library are not of one build");
    }
    try_machine();
    thread_main_starts();
    shared->base = (uint32_t) shared;
    store(&shared->ready, 1);
    futex_wake(SHARED, &shared->ready, 1);
    for (uint32_t lanes = 0;;) {
        uint32_t wanted = load(&shared->wanted);
        for (; lanes < wanted && lanes < LINK_LANES; lanes++) {
            if (thread_start(serve_lane, (void *) lanes, NULL, shared->machine.stack) < 0) {
                die("no thread for lane %u", (unsigned) lanes);
            }
        }
        futex_wait(SHARED, &shared->wanted, wanted);
    }
}

/* The kernel enters here, with no caller: the stack is aligned and main never returns. */
__attribute__((naked, used)) void _start(void)
{
    __asm__ volatile("r29 = and(r29, #-8)\n"
                     "call shell_entry\n");
}

__attribute__((used)) void shell_entry(void)
{
    shell_main();
}
