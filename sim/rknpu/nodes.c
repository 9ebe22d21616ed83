/*
 * The nodes as files: what stat and access say of them, and a listing of their folders.
 *
 * Enough for a program that looks for a node before it opens it.  A listing that the C library
 * makes by itself (glob, scandir, nftw) does not come here.
 *
 * The functions have names of their own in C, for the headers' inline forms of stat are not to be
 * redefined; the symbols are the C library's.
 */
#include "driver.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

enum { DRM_MAJOR = 226, ACCEL_MAJOR = 261 }; /* Linux Documentation/admin-guide/devices.txt */

/* The device number of a node, 0 when the path is none. */
static dev_t number_of(const char *path)
{
    const int driver = path ? settings_driver_of(path) : -1;
    const char *digits = path + (driver < 0 ? 0 : strlen(path));
    while (driver >= 0 && digits[-1] >= '0' && digits[-1] <= '9') {
        digits--;
    }
    return driver < 0 ? 0
                      : makedev(driver == ROCKET ? ACCEL_MAJOR : DRM_MAJOR,
                                (unsigned) strtoul(digits, NULL, 10));
}

static bool is_folder(const char *path, const char *folder)
{
    const size_t length = strlen(folder);
    return path && *settings.nodes && !strncmp(path, folder, length) &&
           (!path[length] || !strcmp(path + length, "/"));
}

/* 0 and the stat of a node or its folder in `st`, or NOT_OURS. */
static int node_stat(const char *path, struct stat *st)
{
    const dev_t number = number_of(path);
    const bool folder = is_folder(path, "/dev/accel") || is_folder(path, "/dev/dri");
    if (!number && !folder) {
        return NOT_OURS;
    }
    memset(st, 0, sizeof(*st));
    st->st_mode = folder ? S_IFDIR | 0755 : S_IFCHR | 0660;
    st->st_nlink = 1;
    st->st_rdev = number;
    st->st_ino = number;
    st->st_blksize = PAGE;
    return 0;
}

#define NEXT(type, symbol)                                                                         \
    static type *next;                                                                             \
    if (!next) {                                                                                   \
        next = (type *) dlsym(RTLD_NEXT, symbol);                                                  \
    }

/* A function that says something of a path: the simulator's answer, or the next library's. */
#define BY_PATH(name, symbol, parameters, arguments, answer)                                       \
    SIM_API int name parameters __asm__(symbol);                                                   \
    int name parameters                                                                            \
    {                                                                                              \
        typedef int function parameters;                                                           \
        NEXT(function, symbol)                                                                     \
        const int result = answer;                                                                 \
        return result == NOT_OURS ? next arguments : result;                                       \
    }

#define STAT(name, symbol)                                                                         \
    BY_PATH(name, symbol, (const char *path, struct stat *st), (path, st), node_stat(path, st))
#define XSTAT(name, symbol)                                                                        \
    BY_PATH(name, symbol, (int version, const char *path, struct stat *st), (version, path, st),   \
            node_stat(path, st))
#define STATAT(name, symbol)                                                                       \
    BY_PATH(name, symbol, (int folder, const char *path, struct stat *st, int flags),              \
            (folder, path, st, flags), node_stat(path, st))

STAT(node_stat_, "stat")
STAT(node_stat64, "stat64")
STAT(node_lstat, "lstat")
STAT(node_lstat64, "lstat64")
XSTAT(node_xstat, "__xstat")
XSTAT(node_xstat64, "__xstat64")
XSTAT(node_lxstat, "__lxstat")
XSTAT(node_lxstat64, "__lxstat64")
STATAT(node_fstatat, "fstatat")
STATAT(node_fstatat64, "fstatat64")

static int node_access(const char *path)
{
    struct stat unused;
    return node_stat(path, &unused);
}

BY_PATH(node_access_, "access", (const char *path, int mode), (path, mode), node_access(path))
BY_PATH(node_faccessat, "faccessat", (int folder, const char *path, int mode, int flags),
        (folder, path, mode, flags), node_access(path))

/* --- an open node is a character device ------------------------------------------------------ */

#define FSTAT(name, symbol, parameters, arguments)                                                 \
    SIM_API int name parameters __asm__(symbol);                                                   \
    int name parameters                                                                            \
    {                                                                                              \
        typedef int function parameters;                                                           \
        NEXT(function, symbol)                                                                     \
        const int result = next arguments;                                                         \
        const char *path = result ? NULL : device_path(fd);                                        \
        return path ? node_stat(path, st) : result;                                                \
    }

FSTAT(node_fstat, "fstat", (int fd, struct stat *st), (fd, st))
FSTAT(node_fstat64, "fstat64", (int fd, struct stat *st), (fd, st))
FSTAT(node_fxstat, "__fxstat", (int version, int fd, struct stat *st), (version, fd, st))
FSTAT(node_fxstat64, "__fxstat64", (int version, int fd, struct stat *st), (version, fd, st))

SIM_API int node_statx(int folder, const char *path, int flags, unsigned mask,
                       struct statx *answer) __asm__("statx");
int node_statx(int folder, const char *path, int flags, unsigned mask, struct statx *answer)
{
    typedef int function(int, const char *, int, unsigned, struct statx *);
    struct stat st;
    NEXT(function, "statx")
    const char *of_file = path && !*path ? device_path(folder) : NULL;
    if (node_stat(of_file ? of_file : path, &st)) {
        return next(folder, path, flags, mask, answer);
    }
    *answer = (struct statx){.stx_mask = STATX_BASIC_STATS,
                             .stx_blksize = PAGE,
                             .stx_nlink = 1,
                             .stx_ino = st.st_ino,
                             .stx_mode = (uint16_t) st.st_mode,
                             .stx_rdev_major = major(st.st_rdev),
                             .stx_rdev_minor = minor(st.st_rdev)};
    return 0;
}

/* --- listings: the simulated nodes of a folder, and no others --------------------------------- */

static struct listing {
    bool open;
    const char *at;     /* in the list of nodes */
    const char *prefix; /* of the names of this folder */
    struct dirent64 entry;
} listings[4];

static struct listing *listing_of(const DIR *folder)
{
    for (size_t i = 0; i < sizeof(listings) / sizeof(*listings); i++) {
        if ((const void *) folder == &listings[i]) {
            return &listings[i];
        }
    }
    return NULL;
}

static DIR *open_listing(const char *prefix)
{
    DIR *made = NULL;
    pthread_mutex_lock(&sim_lock);
    for (size_t i = 0; i < sizeof(listings) / sizeof(*listings) && !made; i++) {
        if (!listings[i].open) {
            listings[i] = (struct listing){.open = true, .at = settings.nodes, .prefix = prefix};
            made = (DIR *) &listings[i];
        }
    }
    pthread_mutex_unlock(&sim_lock);
    errno = made ? errno : EMFILE;
    return made;
}

static bool belongs(const char *name, size_t length, const char *prefix)
{
    const bool accel = !strncmp(name, "accel", 5);
    return length && length < sizeof(listings->entry.d_name) && accel == !strcmp(prefix, "accel");
}

static struct dirent64 *read_listing(struct listing *listing)
{
    while (*listing->at) {
        const char *name = listing->at;
        const size_t length = strcspn(name, ",");
        listing->at = name + length + (name[length] == ',');
        if (belongs(name, length, listing->prefix)) {
            memset(&listing->entry, 0, sizeof(listing->entry));
            memcpy(listing->entry.d_name, name, length);
            listing->entry.d_type = DT_CHR;
            listing->entry.d_ino = 1 + (ino_t) (name - settings.nodes);
            listing->entry.d_reclen = sizeof(listing->entry);
            return &listing->entry;
        }
    }
    return NULL;
}

SIM_API DIR *node_opendir(const char *path) __asm__("opendir");
DIR *node_opendir(const char *path)
{
    typedef DIR *function(const char *);
    NEXT(function, "opendir")
    if (is_folder(path, "/dev/accel")) {
        return open_listing("accel");
    }
    return is_folder(path, "/dev/dri") ? open_listing("dri") : next(path);
}

SIM_API struct dirent64 *node_readdir(DIR *folder) __asm__("readdir");
struct dirent64 *node_readdir(DIR *folder)
{
    typedef struct dirent64 *function(DIR *);
    NEXT(function, "readdir")
    struct listing *listing = listing_of(folder);
    return listing ? read_listing(listing) : next(folder);
}

SIM_API struct dirent64 *node_readdir64(DIR *folder) __asm__("readdir64");
struct dirent64 *node_readdir64(DIR *folder)
{
    typedef struct dirent64 *function(DIR *);
    NEXT(function, "readdir64")
    struct listing *listing = listing_of(folder);
    return listing ? read_listing(listing) : next(folder);
}

SIM_API int node_closedir(DIR *folder) __asm__("closedir");
int node_closedir(DIR *folder)
{
    typedef int function(DIR *);
    NEXT(function, "closedir")
    struct listing *listing = listing_of(folder);
    if (!listing) {
        return next(folder);
    }
    listing->open = false;
    return 0;
}
