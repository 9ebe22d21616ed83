/* Start of the shell, and the threads that serve the library's channels. */
#include "shell.h"

enum { SPINS = 300 }; /* checks of a channel before its thread sleeps */

link_memory *shared;

static int serve(link_channel *channel)
{
    uint32_t *value = channel->value;
    switch (channel->command) {
    case LINK_OPEN:
        return call_open(channel, (const char *) value[0], value[1]);
    case LINK_CLOSE:
        return call_close(channel);
    case LINK_INVOKE:
        return call_invoke(channel);
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

/* Serve one channel, as a thread's entry: wait for a request, run it, answer it, repeat. */
static void serve_channel(void *number)
{
    link_channel *channel = &shared->channel[(uint32_t) number];
    uint32_t done = LINK_ENDED;
    for (;;) {
        for (int i = 0; i < SPINS && load(&channel->asked) == done; i++) {
        }
        while (load(&channel->asked) == done) {
            futex_wait(SHARED, &channel->asked, done);
        }
        done = load(&channel->asked);
        channel->result = serve(channel);
        if (channel->crash) {
            *(volatile uint32_t *) 0 = 0;
        }
        store(&channel->answered, done);
        futex_wake(SHARED, &channel->answered, 1);
    }
}

/* Execute an HVX instruction, so that a qemu without HVX fails at the start and not in a skel. */
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
        die("the shell and the library come from different builds");
    }
    try_machine();
    thread_main_starts();
    shared->base = (uint32_t) shared;
    store(&shared->ready, 1);
    futex_wake(SHARED, &shared->ready, 1);
    for (uint32_t channels = 0;;) {
        uint32_t wanted = load(&shared->wanted);
        for (; channels < wanted && channels < LINK_CHANNELS; channels++) {
            if (thread_start(serve_channel, (void *) channels, NULL, shared->machine.stack) < 0) {
                die("no thread for channel %u", (unsigned) channels);
            }
        }
        futex_wait(SHARED, &shared->wanted, wanted);
    }
}

/* The kernel starts the process here: align the stack and call shell_entry(), which never returns.
 * */
__attribute__((naked, used)) void _start(void)
{
    __asm__ volatile("r29 = and(r29, #-8)\n"
                     "call shell_entry\n");
}

__attribute__((used)) void shell_entry(void)
{
    shell_main();
}
