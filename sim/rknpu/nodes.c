/*
 * The device nodes as files: stat, access and listings of their folders.  This file also simulates
 * the files in /sys and /proc that describe the chip and the cores and nodes of each driver.
 *
 * This is enough for a program that inspects a node before opening the node.  Listings inside the C
 * library (glob, scandir, nftw) are not simulated.
 *
 * The functions have the C library's symbols but other names in C, because the headers' inline
 * forms of stat cannot be redefined.
 */
#include "driver.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { DRM_MAJOR = 226, ACCEL_MAJOR = 261 }; /* Linux Documentation/admin-guide/devices.txt */
enum { MAX_NAMES = 16, NAME_SIZE = 32 };

static const char ROCKET_CORES[] = "/sys/bus/platform/drivers/rocket";
static const char *const CORE_NAMES[CORES] = {"fdab0000.npu", "fdac0000.npu", "fdad0000.npu"};
static const char RKNPU_CORES[] = "/sys/bus/platform/drivers/RKNPU"; /* one device for all */
static const char *const TREES[] = {"/sys/firmware/devicetree/base", "/proc/device-tree"};
static const char *const TREE_NAMES[] = {"compatible", "model", "npu@fdab0000"};
enum { FILE_SIZE = 64 };

/* --- simulated paths -----------------------------------------------------------------------------
 * */

typedef char names[MAX_NAMES][NAME_SIZE];

/* Stores the names of the nodes that begin with "accel", or of the others; returns their number. */
static int node_names(bool accel, names found)
{
    int count = 0;
    for (const char *node = settings.nodes; *node && count < MAX_NAMES;) {
        const size_t length = strcspn(node, ",");
        if (length && length < NAME_SIZE && accel == !strncmp(node, "accel", 5)) {
            memcpy(found[count], node, length);
            found[count++][length] = 0;
        }
        node += length + (node[length] == ',');
    }
    return count;
}

static bool is(const char *path, const char *folder)
{
    const size_t length = strlen(folder);
    return path && !strncmp(path, folder, length) && (!path[length] || !strcmp(path + length, "/"));
}

static int fill(names found, const char *const *with, int count)
{
    for (int i = 0; i < count; i++) {
        strcpy(found[i], with[i]);
    }
    return count;
}

/* Stores the names in a simulated folder; returns their number, 0 if the folder is not simulated.
 * */
static int folder_names(const char *path, names found)
{
    if (is(path, "/dev/accel")) {
        return node_names(true, found);
    }
    if (is(path, "/dev/dri")) {
        return node_names(false, found);
    }
    if (is(path, "/sys/class/drm")) {
        return node_names(false, found);
    }
    if (*settings.nodes && (is(path, TREES[0]) || is(path, TREES[1]))) {
        return fill(found, TREE_NAMES, 3);
    }
    if (is(path, RKNPU_CORES) && node_names(false, found)) {
        return fill(found, CORE_NAMES, 1);
    }
    if (is(path, ROCKET_CORES) && node_names(true, found)) {
        return fill(found, CORE_NAMES, settings.cores);
    }
    return 0;
}

/* Returns whether `path` is `name` in `folder`. */
static bool is_at(const char *path, const char *folder, const char *name)
{
    const size_t length = strlen(folder);
    return path && !strncmp(path, folder, length) && path[length] == '/' &&
           is(path + length + 1, name);
}

/* Returns whether `path` is an entry of the simulated folder `folder`. */
static bool is_in(const char *path, const char *folder)
{
    names found;
    for (int i = folder_names(folder, found); i--;) {
        if (is_at(path, folder, found[i])) {
            return true;
        }
    }
    return false;
}

static bool is_in_tree(const char *path, const char *name)
{
    return *settings.nodes && (is_at(path, TREES[0], name) || is_at(path, TREES[1], name));
}

/* Returns whether `path` is the uevent file, with the driver's name, of a node of rknpu. */
static bool is_uevent(const char *path)
{
    names found;
    char node[NAME_SIZE];
    int end = 0;
    if (sscanf(path, "/sys/class/drm/%31[^/]/device/uevent%n", node, &end) != 1 || !end ||
        path[end]) {
        return false;
    }
    for (int i = node_names(false, found); i--;) {
        if (!strcmp(found[i], node)) {
            return true;
        }
    }
    return false;
}

/* Stores the content of a simulated file; returns its bytes, 0 if the file is not simulated. */
static int file_text(const char *path, char text[FILE_SIZE])
{
    const char *chip = settings.cores == 2 ? "rk3583" : "rk3588";
    if (is_in_tree(path, "compatible")) {
        return snprintf(text, FILE_SIZE, "simulated,%s%crockchip,%s", chip, 0, chip) + 1;
    }
    if (is_in_tree(path, "model")) {
        return snprintf(text, FILE_SIZE, "simulated %s", chip) + 1;
    }
    return path && is_uevent(path) ? snprintf(text, FILE_SIZE, "DRIVER=RKNPU\n") : 0;
}

/* Returns the device number of a node, or 0 if `path` is not a node. */
static dev_t number_of(const char *path)
{
    const int driver = path ? settings_driver_of(path) : -1;
    if (driver < 0) {
        return 0;
    }
    const char *digits = path + strlen(path);
    while (digits[-1] >= '0' && digits[-1] <= '9') {
        digits--;
    }
    return makedev(driver == ROCKET ? ACCEL_MAJOR : DRM_MAJOR,
                   (unsigned) strtoul(digits, NULL, 10));
}

/* Stores the attributes of a simulated path in `st` and returns 0, or returns NOT_OURS. */
static int node_stat(const char *path, struct stat *st)
{
    names unused;
    char text[FILE_SIZE];
    const dev_t number = number_of(path);
    const int file = number ? 0 : file_text(path, text);
    const bool folder =
        !number && !file &&
        (folder_names(path, unused) || is_in(path, ROCKET_CORES) || is_in(path, RKNPU_CORES) ||
         is_in(path, TREES[0]) || is_in(path, TREES[1]));
    if (!number && !folder && !file) {
        return NOT_OURS;
    }
    memset(st, 0, sizeof(*st));
    st->st_mode = number ? S_IFCHR | 0660 : folder ? S_IFDIR | 0755 : S_IFREG | 0444;
    st->st_nlink = 1;
    st->st_rdev = number;
    st->st_ino = number;
    st->st_size = file;
    st->st_blksize = PAGE;
    return 0;
}

int nodes_open(const char *path, int flags)
{
    char text[FILE_SIZE];
    const int size = file_text(path, text);
    if (!size) {
        return NOT_OURS;
    }
    const int fd = memfd_create("simulated", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
    if (fd < 0 || pwrite(fd, text, (size_t) size, 0) != size) {
        return -ENOMEM;
    }
    return fd;
}

#define NEXT(type, symbol)                                                                         \
    static type *next;                                                                             \
    if (!next) {                                                                                   \
        next = (type *) dlsym(RTLD_NEXT, symbol);                                                  \
    }

/* Defines a function of a path, which returns the simulator's answer or calls the next library's
 * function. */
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

/* --- listings of simulated folders ----------------------------------------------------------- */

static struct listing {
    bool open;
    int at, count;
    names found;
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

static DIR *open_listing(const names found, int count)
{
    DIR *made = NULL;
    pthread_mutex_lock(&sim_lock);
    for (size_t i = 0; i < sizeof(listings) / sizeof(*listings) && !made; i++) {
        if (!listings[i].open) {
            listings[i] = (struct listing){.open = true, .count = count};
            memcpy(listings[i].found, found, sizeof(listings[i].found));
            made = (DIR *) &listings[i];
        }
    }
    pthread_mutex_unlock(&sim_lock);
    errno = made ? errno : EMFILE;
    return made;
}

static struct dirent64 *read_listing(struct listing *listing)
{
    struct dirent64 *entry = &listing->entry;
    if (listing->at == listing->count) {
        return NULL;
    }
    memset(entry, 0, sizeof(*entry));
    strcpy(entry->d_name, listing->found[listing->at++]);
    entry->d_ino = (ino_t) listing->at;
    entry->d_reclen = sizeof(*entry); /* d_type 0: the reader calls stat */
    return entry;
}

SIM_API DIR *node_opendir(const char *path) __asm__("opendir");
DIR *node_opendir(const char *path)
{
    typedef DIR *function(const char *);
    NEXT(function, "opendir")
    names found;
    const int count = folder_names(path, found);
    return count ? open_listing(found, count) : next(path);
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
