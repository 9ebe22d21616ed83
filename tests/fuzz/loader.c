/*
 * The loader of the simulated DSP alone, a program for qemu-hexagon: for each byte that it reads it
 * loads the file "module.so" and answers with a code.  No code of that file runs, unless it names
 * functions to be called when it is loaded.
 */
#include "elf.c"
#include "module.c"

enum { SYS_OPENAT = 56, HERE = -100 };

static link_memory machine = {.machine.arch = 0x68};
link_memory *shared = &machine;

void say(const char *format, ...)
{
    (void) format;
}

void lock_take(lock *l)
{
    (void) l;
}

void lock_leave(lock *l)
{
    (void) l;
}

const char *vectors_watch(int fd, const elf_header *h, uint8_t *base)
{
    (void) fd, (void) h, (void) base;
    return NULL;
}

void tls_module_ends(uint32_t module)
{
    (void) module;
}

void *import_find(const char *name)
{
    return name[0] ? (void *) 0x1000 : NULL;
}

static int load_once(void)
{
    static const char entry[] = "npurt_skel_handle_invoke";
    module *m;
    int fd = (int) sys_call(SYS_OPENAT, HERE, (long) "module.so", 0, 0, 0, 0);
    int code = module_load("module", 6, fd, &m);
    sys_close(fd);
    if (code == 0) {
        module_symbol(m, entry, sizeof(entry) - 1);
        module_drop(m);
    }
    return code;
}

void work(void);

void work(void)
{
    uint8_t order;
    while (sys_call(SYS_READ, 0, (long) &order, 1, 0, 0, 0) == 1) {
        int code = load_once();
        sys_call(SYS_WRITE, 1, (long) &code, sizeof(code), 0, 0, 0);
    }
    for (;;) {
        sys_call(SYS_EXIT_GROUP, 0, 0, 0, 0, 0, 0);
    }
}

__attribute__((naked, noreturn)) void _start(void);

__attribute__((naked, noreturn)) void _start(void)
{
    __asm__ volatile("call work");
}
