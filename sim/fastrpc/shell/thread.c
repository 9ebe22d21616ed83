/*
 * Threads of the PD, their ids and packet counts, and QuRT's thread calls.
 *
 * Source of names, structs and codes: QuRT's qurt_thread.h and qurt_error.h as published in many
 * modem and Hexagon trees.  The kernel clears a thread's `kernel` when the thread has ended
 * (CLONE_CHILD_CLEARTID); after that, the joining thread may free the stack.
 */
#include "qurt.h"

enum { PAGE = 1 << 16, THREAD_FLAGS = 0x00050f00 }; /* VM FS FILES SIGHAND THREAD SYSVSEM */
enum { CLONE_SETTLS = 0x80000, CLONE_PARENT_SETTID = 0x100000, CLONE_CHILD_CLEARTID = 0x200000 };

typedef struct {
    uint32_t kernel;  /* id in the kernel, 0 after the thread has ended; a futex */
    uint32_t serial;  /* number of threads that have used this slot */
    uint32_t claimed; /* number of claims: of the thread and of those that join it */
    uint32_t mark;    /* packet counter at the last update of the account */
    uint32_t pending; /* packets from `mark` to the start of the current wait */
    int status;       /* argument of qurt_thread_exit */
    uint16_t priority;
    bool joinable;
    void (*entry)(void *);
    void *argument;
    char name[QURT_NAME];
} thread;

static thread threads[LINK_THREADS];
static uint32_t used; /* slots used so far */
static lock table;

/* --- waiting --------------------------------------------------------------------------------- */

enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1, FUTEX_PRIVATE = 128 };

/* Use private futexes in private memory: Linux refuses other futexes in private pages that are not
 * writable, and qemu write-protects pages whose code it has translated. */
static long operation(futex_scope scope, long what)
{
    return scope == OURS ? what | FUTEX_PRIVATE : what;
}

void futex_wait(futex_scope scope, uint32_t *word, uint32_t value)
{
    sys_call(SYS_FUTEX64, (long) word, operation(scope, FUTEX_WAIT), (long) value, 0, 0, 0);
}

bool futex_wait_until(futex_scope scope, uint32_t *word, uint32_t value, uint64_t end)
{
    uint64_t now = sys_time();
    if (now >= end) {
        return false;
    }
    uint32_t left = end - now > 1000000 ? 1000000 : (uint32_t) (end - now);
    int64_t wait[2] = {left / 1000000u, (left % 1000000u) * 1000u};
    long what = operation(scope, FUTEX_WAIT);
    sys_call(SYS_FUTEX64, (long) word, what, (long) value, (long) wait, 0, 0);
    return true;
}

void futex_wake(futex_scope scope, uint32_t *word, int count)
{
    sys_call(SYS_FUTEX64, (long) word, operation(scope, FUTEX_WAKE), count, 0, 0, 0);
}

void lock_take(lock *l)
{
    uint32_t free = 0;
    if (__atomic_compare_exchange_n(l, &free, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        return;
    }
    while (__atomic_exchange_n(l, 2, __ATOMIC_SEQ_CST) != 0) {
        futex_wait(OURS, l, 2);
    }
}

void lock_leave(lock *l)
{
    if (__atomic_exchange_n(l, 0, __ATOMIC_SEQ_CST) == 2) {
        futex_wake(OURS, l, 1);
    }
}

/* --- accounts -------------------------------------------------------------------------------- */

static void add(thread *self, uint32_t packets)
{
    uint64_t *account = &shared->packets[self - threads];
    __atomic_store_n(account, *account + packets, __ATOMIC_SEQ_CST);
}

void account_start(void)
{
    thread *self = sys_self();
    self->mark = sys_packets();
}

void account_settle(void)
{
    thread *self = sys_self();
    add(self, sys_packets() - self->mark);
    self->mark = sys_packets();
}

void account_pause(void)
{
    thread *self = sys_self();
    self->pending = sys_packets() - self->mark;
}

void account_resume(void)
{
    thread *self = sys_self();
    add(self, self->pending);
    self->mark = sys_packets();
}

uint64_t account_total(void)
{
    uint64_t total = 0;
    for (uint32_t i = 0, n = load(&used); i < n; i++) {
        total += __atomic_load_n(&shared->packets[i], __ATOMIC_SEQ_CST);
    }
    return total;
}

/* --- threads --------------------------------------------------------------------------------- */

/* Claim an unused slot; NULL: all slots are in use. */
static thread *claim(void)
{
    thread *found = NULL;
    lock_take(&table);
    for (uint32_t i = 0; i < LINK_THREADS && !found; i++) {
        if (!threads[i].claimed && !load(&threads[i].kernel)) {
            found = &threads[i];
            found->claimed = 1;
            found->serial++;
            if (i >= used) {
                store(&used, i + 1);
            }
        }
    }
    lock_leave(&table);
    return found;
}

static void unclaim(thread *t)
{
    __atomic_sub_fetch(&t->claimed, 1, __ATOMIC_SEQ_CST);
}

static uint32_t id_of(const thread *t)
{
    return t->serial * LINK_THREADS + (uint32_t) (t - threads);
}

uint32_t thread_slot(void)
{
    return (uint32_t) ((thread *) sys_self() - threads);
}

UNREACHABLE static void leave(thread *self, int status)
{
    self->status = status;
    tls_thread_ends(thread_slot());
    account_settle();
    if (!self->joinable) {
        unclaim(self);
    }
    for (;;) {
        sys_call(SYS_EXIT, 0, 0, 0, 0, 0, 0);
    }
}

__attribute__((used)) void thread_run(thread *self)
{
    account_start();
    self->entry(self->argument);
    leave(self, 0);
}

/* Clone in assembly, because the new thread returns from the kernel with an empty stack. */
__attribute__((naked)) static long clone_thread(uint32_t flags, void *stack, uint32_t *parent_tid,
                                                uint32_t *child_tid, void *self)
{
    __asm__ volatile("r6 = #220\n"
                     "trap0(#1)\n"
                     "p0 = cmp.eq(r0, #0)\n"
                     "if (!p0) jumpr r31\n"
                     "r0 = ugp\n"
                     "call thread_run\n");
}

/* Allocate a stack with an inaccessible guard page below it.  It is never freed: only the threads
 * that serve channels use one, and they never end. */
static void *guarded_stack(size_t bytes)
{
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    char *memory = sys_map(NULL, whole + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    return memory ? sys_map(memory + PAGE, whole, PROT_READ | PROT_WRITE, fixed, -1) : NULL;
}

/* Start a thread in the slot *t*; return 0, or -errno. */
static long start(thread *t, void *stack, size_t bytes)
{
    uint32_t flags = THREAD_FLAGS | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    void *top = (void *) (((uintptr_t) stack + bytes) & ~(uintptr_t) 7);
    long got = clone_thread(flags, top, &t->kernel, &t->kernel, t);
    return got < 0 ? got : 0;
}

int thread_start(void (*entry)(void *), void *argument, void *stack, size_t bytes)
{
    thread *t = claim();
    stack = stack ? stack : guarded_stack(bytes);
    if (!t || !stack) {
        return THREADS_FULL;
    }
    t->entry = entry;
    t->argument = argument;
    return start(t, stack, bytes) < 0 ? THREADS_FULL : 0;
}

void thread_main_starts(void)
{
    thread *self = claim();
    self->kernel = 1;
    sys_set_self(self);
}

/* --- QuRT ------------------------------------------------------------------------------------ */

static int create(uint32_t *id, const qurt_thread_attributes *attributes, void (*entry)(void *),
                  void *argument)
{
    if (!id || !attributes || !entry || !attributes->stack || attributes->stack_bytes < 256) {
        return QURT_EVAL;
    }
    thread *t = claim();
    if (!t) {
        return QURT_EMEM;
    }
    t->entry = entry;
    t->argument = argument;
    t->priority = attributes->priority;
    t->joinable = attributes->detach_state == QURT_JOINABLE;
    t->status = 0;
    __builtin_memcpy(t->name, attributes->name, QURT_NAME);
    t->name[QURT_NAME - 1] = 0;
    *id = id_of(t);
    long got = start(t, attributes->stack, attributes->stack_bytes);
    if (got < 0) {
        unclaim(t);
    }
    return got < 0 ? QURT_EMEM : QURT_EOK;
}

int qurt_thread_create(uint32_t *id, const qurt_thread_attributes *attributes,
                       void (*entry)(void *), void *argument)
{
    account_settle();
    int result = create(id, attributes, entry, argument);
    account_start();
    return result;
}

UNREACHABLE void qurt_thread_exit(int status)
{
    leave(sys_self(), status);
}

/* Add a claim to the slot of thread *id* and return the slot, or NULL if the thread has ended. */
static thread *joined(uint32_t id)
{
    thread *t = &threads[id % LINK_THREADS];
    lock_take(&table);
    bool there = id == id_of(t) && (t->joinable ? t->claimed : load(&t->kernel));
    if (there) {
        __atomic_add_fetch(&t->claimed, 1, __ATOMIC_SEQ_CST);
    }
    lock_leave(&table);
    return there ? t : NULL;
}

int qurt_thread_join(uint32_t id, int *status)
{
    thread *t = joined(id);
    if (!t) {
        return QURT_ENOTHREAD;
    }
    account_pause();
    for (uint32_t kernel = load(&t->kernel); kernel; kernel = load(&t->kernel)) {
        futex_wait(SHARED, &t->kernel, kernel); /* SHARED, because the kernel wakes this futex */
    }
    account_resume();
    if (status) {
        *status = t->status;
    }
    if (t->joinable) {
        t->joinable = false;
        unclaim(t);
    }
    unclaim(t);
    return QURT_EOK;
}

uint32_t qurt_thread_get_id(void)
{
    return id_of(sys_self());
}

int qurt_thread_get_priority(uint32_t id)
{
    const thread *t = &threads[id % LINK_THREADS];
    return id == id_of(t) ? t->priority : -1;
}

int qurt_thread_set_priority(uint32_t id, uint16_t priority)
{
    thread *t = &threads[id % LINK_THREADS];
    if (id != id_of(t) || priority == 0 || priority > 254) {
        return QURT_EVAL;
    }
    t->priority = priority;
    return QURT_EOK;
}

void qurt_thread_get_name(char *name, uint8_t bytes)
{
    const thread *self = sys_self();
    for (uint32_t i = 0; i < bytes; i++) {
        name[i] = i + 1 < bytes && i < QURT_NAME ? self->name[i] : 0;
    }
}
