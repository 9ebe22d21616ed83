/* Find and start qemu-hexagon for a DSP session, and report why a start failed. */
#define _GNU_SOURCE
#include "sim.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The oldest qemu with HVX; the first descriptor that qemu does not inherit. */
enum { NEEDED_MAJOR = 8, NEEDED_MINOR = 1, FREE_FROM = 5 };

/* .ci/qemu is the home of these facts; tests/test_qemu_remedy.py compares. */
#define REMEDY                                                                                     \
    "install it with: apt-get install qemu-user\n  (Debian 12 has 7.2, which is too old: add "     \
    "bookworm-backports to apt's sources, then\n  apt-get install -t bookworm-backports "          \
    "qemu-user; or name another one in NPURT_QEMU_HEXAGON)"

/* --- finding --------------------------------------------------------------------------------- */

static bool find_in_path(char path[PATH_MAX])
{
    const char *folders = getenv("PATH");
    for (const char *at = folders ? folders : "/usr/bin:/bin"; *at;) {
        size_t length = strcspn(at, ":");
        snprintf(path, PATH_MAX, "%.*s/qemu-hexagon", (int) length, length ? at : ".");
        if (access(path, X_OK) == 0) {
            return true;
        }
        at += length + (at[length] != 0);
    }
    return false;
}

static bool find_qemu(char path[PATH_MAX])
{
    const char *given = getenv("NPURT_QEMU_HEXAGON");
    if (!given || !*given) {
        if (!find_in_path(path)) {
            report("qemu-hexagon is not installed\n  remedy: " REMEDY);
            return false;
        }
        return true;
    }
    snprintf(path, PATH_MAX, "%s", given);
    if (access(path, X_OK)) {
        report("NPURT_QEMU_HEXAGON=%s: %s\n  remedy: unset it, or " REMEDY, given, strerror(errno));
        return false;
    }
    return true;
}

/* Find the shell in the folder of this library, after resolving symbolic links. */
static bool find_shell(char path[PATH_MAX])
{
    Dl_info here;
    char library[PATH_MAX];
    if (!dladdr((void *) find_shell, &here) || !realpath(here.dli_fname, library)) {
        report("cannot find the folder of this library");
        return false;
    }
    int folder = (int) (strrchr(library, '/') - library);
    snprintf(path, PATH_MAX, "%.*s/shell", folder, library);
    if (access(path, R_OK)) {
        report("%s: %s\n  remedy: build npurt again: python -m tools.build", path, strerror(errno));
        return false;
    }
    return true;
}

/* --- starting -------------------------------------------------------------------------------- */

typedef struct {
    char *const *arguments, *const *environment;
    int descriptors[3]; /* become 2, 3 and 4 of the new process */
    pid_t parent;
} start;

/* Move the descriptors to 2, 3 and 4, even if their present numbers overlap these; close all
 * others. */
static bool arrange(const int descriptors[3])
{
    int moved[3];
    for (int i = 0; i < 3; i++) {
        moved[i] = fcntl(descriptors[i], F_DUPFD, FREE_FROM);
    }
    int null = open("/dev/null", O_RDWR);
    bool good = null >= 0 && dup2(null, 0) == 0 && dup2(null, 1) == 1;
    for (int i = 0; i < 3; i++) {
        good = good && moved[i] >= 0 && dup2(moved[i], 2 + i) == 2 + i;
    }
    syscall(SYS_close_range, FREE_FROM, ~0u, 0);
    return good;
}

/* Run qemu in the new process.  Before execve the process makes only system calls, because it
 * shares memory with its parent.  The process leaves the terminal, so that Ctrl-C goes to the
 * program alone, and dies with the thread that started it. */
static void become(const start *how)
{
    const struct rlimit none = {0, 0};
    sigset_t all;
    sigemptyset(&all);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == how->parent && arrange(how->descriptors)) {
        setsid();
        setrlimit(RLIMIT_CORE, &none);
        sigprocmask(SIG_SETMASK, &all, NULL);
        execve(how->arguments[0], how->arguments, how->environment);
    }
    _exit(127);
}

static const char *cpu_of(uint32_t arch)
{
    switch (arch) {
    case 0x65: /* qemu has no v65 CPU; v66 runs its code */
    case 0x66:
        return "v66";
    case 0x68:
        return "v68";
    case 0x69:
        return "v69";
    default: /* qemu has no CPU newer than v73 */
        return "v73";
    }
}

_Thread_local bool process_starting;

pid_t process_start(const link_machine *machine, int log, int memory, int socket)
{
    char qemu[PATH_MAX], shell[PATH_MAX], search[PATH_MAX + 32] = "LD_LIBRARY_PATH=";
    if (!find_qemu(qemu) || !find_shell(shell)) {
        return -1;
    }
    /* Pass only LD_LIBRARY_PATH to qemu, for the loader; QEMU_* variables would change its
     * behaviour. */
    const char *libraries = getenv("LD_LIBRARY_PATH");
    snprintf(search + strlen(search), PATH_MAX, "%s", libraries ? libraries : "");
    char cpu[8];
    snprintf(cpu, sizeof(cpu), "%s", cpu_of(machine->arch));
    char option[] = "-cpu";
    char *arguments[] = {qemu, option, cpu, shell, NULL};
    char *environment[] = {libraries ? search : NULL, NULL};
    start how = {arguments, environment, {log, memory, socket}, getpid()};
    process_starting = true;
    pid_t child = vfork();
    if (child == 0) {
        become(&how);
    }
    process_starting = false;
    if (child < 0) {
        report("cannot start %s: %s", qemu, strerror(errno));
    }
    return child;
}

/* --- explaining ------------------------------------------------------------------------------ */

/* Read the version from the output of `qemu --version`: "qemu-hexagon version 10.0.2 ...". */
static bool qemu_version(const char *qemu, int *major, int *minor)
{
    char command[PATH_MAX + 32], line[256] = "";
    snprintf(command, sizeof(command), "'%s' --version 2>/dev/null", qemu);
    FILE *output = strchr(qemu, '\'') ? NULL : popen(command, "re");
    if (!output) {
        return false;
    }
    char *got = fgets(line, sizeof(line), output);
    pclose(output);
    const char *number = got ? strstr(line, "version ") : NULL;
    return number && sscanf(number, "version %d.%d", major, minor) == 2;
}

void process_explain(void)
{
    char qemu[PATH_MAX];
    int major, minor;
    if (!find_qemu(qemu)) {
        return;
    }
    if (!qemu_version(qemu, &major, &minor)) {
        report("%s does not run, or is not qemu\n  remedy: " REMEDY, qemu);
    } else if (major < NEEDED_MAJOR || (major == NEEDED_MAJOR && minor < NEEDED_MINOR)) {
        report("%s is version %d.%d, which has no HVX; %d.%d or newer is needed\n  remedy: " REMEDY,
               qemu, major, minor, NEEDED_MAJOR, NEEDED_MINOR);
    } else {
        report("%s %d.%d ended before it served\n"
               "  remedy: set NPURT_SIM_FASTRPC=log=1 to see its messages",
               qemu, major, minor);
    }
}
