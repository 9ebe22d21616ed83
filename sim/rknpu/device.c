/*
 * Open files, the ioctls of every DRM driver, and mappings.  A simulated file's descriptor is that
 * of an empty memfd, so dup, fork, select and close work as usual.  The memfd's inode identifies
 * the file.
 */
#include "driver.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* DRM's mmap offsets start beyond 32 bits.  Each file of a driver has its own range of OFFSETS. */
static const uint64_t FIRST_OFFSET = 0x100000000, OFFSETS = 1ull << 40;

static struct file *files;
static atomic_int open_files; /* read without the lock: calls on other descriptors need none */
static uint64_t last_id;
static bool dead[DRIVERS];

static const char *const NAMES[DRIVERS] = {"rocket", "rknpu"};
static const char *const DATES[DRIVERS] = {"0", "20240828"};
static const char *const DESCRIPTIONS[DRIVERS] = {"rocket DRM", "RKNPU driver"};

/* Calls the kernel's fstat, because this library exports its replacement of fstat. */
static bool identity(int fd, struct stat *st)
{
    return !syscall(SYS_fstat, fd, st);
}

static struct file *find(int fd)
{
    struct stat st;
    if (!open_files || !identity(fd, &st)) {
        return NULL;
    }
    for (struct file *file = files; file; file = file->next) {
        if (file->ino == st.st_ino && file->dev == st.st_dev) {
            return file;
        }
    }
    return NULL;
}

/* --- open and close ------------------------------------------------------------------------ */

static int new_descriptor(int flags)
{
    const unsigned cloexec = flags & O_CLOEXEC ? MFD_CLOEXEC : 0;
    const int fd = memfd_create("rknpu-sim", cloexec | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return -errno;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_WRITE); /* the memfd holds no data */
    return fd;
}

static uint64_t free_offset(enum driver driver)
{
    uint64_t offset = FIRST_OFFSET;
    for (const struct file *file = files; file;) {
        const bool taken = file->driver == driver && file->first_offset == offset;
        offset += taken ? OFFSETS : 0;
        file = taken ? files : file->next;
    }
    return offset;
}

static struct file *new_file(int fd, enum driver driver, const char *path)
{
    struct stat st;
    struct file *file = calloc(1, sizeof(*file));
    if (!file || !identity(fd, &st)) {
        free(file);
        return NULL;
    }
    *file = (struct file){
        .dev = st.st_dev, .ino = st.st_ino, .driver = driver, .home = -1, .id = ++last_id};
    file->first_offset = file->next_offset = free_offset(driver);
    snprintf(file->path, sizeof(file->path), "%s", path);
    if (driver == ROCKET) {
        space_init(&file->own, settings.iova_base, IOVA_END, false);
    }
    file->next = files;
    files = file;
    open_files++;
    return file;
}

static int open_locked(enum driver driver, const char *path, int flags)
{
    const struct fault fault = fault_at(CALL_OPEN);
    if (fault.effect == FAIL || dead[driver]) {
        return fault.effect == FAIL ? -fault.error : -ENODEV;
    }
    const int fd = new_descriptor(flags);
    if (fd < 0) {
        return fd;
    }
    if (!new_file(fd, driver, path)) {
        close_descriptor(fd);
        return -ENOMEM;
    }
    if (driver == ROCKET) {
        cores_wedge(ROCKET, false); /* a new open of the node frees hung cores */
    }
    return fd;
}

int device_open(const char *path, int flags)
{
    const int driver = settings_driver_of(path);
    if (driver < 0) {
        return NOT_OURS;
    }
    pthread_mutex_lock(&sim_lock);
    const int fd = open_locked((enum driver) driver, path, flags);
    pthread_mutex_unlock(&sim_lock);
    return fd;
}

/* Returns whether this process still has a descriptor of the file. */
static bool still_open(const struct file *file)
{
    char entries[4096];
    struct stat st;
    bool found = false;
    const int folder = (int) syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY);
    for (long size; folder >= 0 && !found &&
                    (size = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0;) {
        for (long at = 0; at < size && !found;) {
            const struct dirent64 *entry = (const void *) (entries + at);
            const int fd = atoi(entry->d_name);
            found = entry->d_name[0] != '.' && fd != folder && identity(fd, &st) &&
                    st.st_ino == file->ino && st.st_dev == file->dev;
            at += entry->d_reclen;
        }
    }
    close_descriptor(folder);
    return found;
}

static void release(struct file *file)
{
    cores_drop(file->driver, file, NULL);
    while (file->jobs || file->busy) {
        if (file->driver == RKNPU) {
            cores_reset(RKNPU); /* otherwise a hung job never ends */
        }
        sim_wait(0);
    }
    for (uint32_t i = 0; i < file->bo_count; i++) {
        if (file->bos[i]) {
            bo_put(file->bos[i]);
        }
    }
    struct file **link = &files;
    while (*link != file) {
        link = &(*link)->next;
    }
    *link = file->next;
    open_files--;
    if (file->driver == ROCKET) {
        space_destroy(&file->own);
    }
    free(file->bos);
    free(file);
}

uint64_t device_id(int fd)
{
    if (!open_files) {
        return 0;
    }
    pthread_mutex_lock(&sim_lock);
    const struct file *file = find(fd);
    const uint64_t id = file ? file->id : 0;
    pthread_mutex_unlock(&sim_lock);
    return id;
}

const char *device_path(int fd)
{
    if (!open_files) {
        return NULL;
    }
    pthread_mutex_lock(&sim_lock);
    const struct file *file = find(fd);
    pthread_mutex_unlock(&sim_lock);
    return file ? file->path : NULL;
}

void device_closed(uint64_t id)
{
    pthread_mutex_lock(&sim_lock);
    struct file *file = files;
    while (file && file->id != id) {
        file = file->next;
    }
    if (file && !still_open(file)) {
        release(file);
    }
    pthread_mutex_unlock(&sim_lock);
}

void device_reload(void)
{
    fault_clear();
    memset(dead, 0, sizeof(dead));
    for (int driver = 0; driver < DRIVERS; driver++) {
        cores_wedge((enum driver) driver, false);
        cores_reset((enum driver) driver);
    }
}

int device_at_work(void)
{
    int count = 0;
    for (const struct file *file = files; file; file = file->next) {
        count += file->home >= 0;
    }
    return count;
}

int device_quietest_core(void)
{
    int users[CORES] = {0}, core = 0;
    for (const struct file *file = files; file; file = file->next) {
        if (file->home >= 0) {
            users[file->home]++;
        }
    }
    for (int i = 1; i < settings.cores; i++) {
        core = users[i] < users[core] ? i : core;
    }
    return core;
}

int device_jobs(enum driver driver)
{
    int count = 0;
    for (const struct file *file = files; file; file = file->next) {
        count += file->driver == driver ? file->jobs : 0;
    }
    return count;
}

/* --- buffers of a file ---------------------------------------------------------------------- */

struct bo *file_bo(const struct file *file, uint32_t handle)
{
    return handle - 1 < file->bo_count ? file->bos[handle - 1] : NULL;
}

int file_add_bo(struct file *file, struct space *space, uint64_t size, bool cacheable, bool zero,
                struct bo **made)
{
    uint32_t place = 0;
    while (place < file->bo_count && file->bos[place]) {
        place++;
    }
    if (place == file->bo_capacity) {
        const uint32_t capacity = place ? 2 * place : 64;
        struct bo **bos = realloc(file->bos, capacity * sizeof(*bos));
        if (!bos) {
            return -ENOMEM;
        }
        file->bos = bos;
        file->bo_capacity = capacity;
    }
    const int error = bo_create(space, file->next_offset, size, cacheable, zero, made);
    if (error) {
        return error;
    }
    file->next_offset += round_up(size, PAGE);
    file->bos[place] = *made;
    file->bo_count = place < file->bo_count ? file->bo_count : place + 1;
    (*made)->handle = place + 1;
    return 0;
}

void file_drop_bo(struct file *file, struct bo *bo)
{
    file->bos[bo->handle - 1] = NULL;
    bo_put(bo);
}

/* --- ioctl ---------------------------------------------------------------------------------- */

/* Copies the part of a string that fits and stores its whole length, as drm_copy_field does. */
static int copy_field(uint64_t to, uint64_t *size, const char *value)
{
    const uint64_t length = strlen(value);
    const uint64_t part = *size < length ? *size : length;
    *size = length;
    return part && to ? user_write(to, value, part) : 0;
}

static int get_version(struct file *file, void *argument)
{
    struct drm_version *version = argument;
    const uint32_t number = file->driver == RKNPU ? settings.version : 0;
    version->major = (int32_t) (number / 10000);
    version->minor = (int32_t) (number / 100 % 100);
    version->patch = (int32_t) (number % 100);
    int error = copy_field(version->name, &version->name_len, NAMES[file->driver]);
    error = error ? error : copy_field(version->date, &version->date_len, DATES[file->driver]);
    return error ? error
                 : copy_field(version->desc, &version->desc_len, DESCRIPTIONS[file->driver]);
}

static int gem_close(struct file *file, void *argument)
{
    const struct drm_gem_close *args = argument;
    struct bo *bo = file_bo(file, args->handle);
    if (!bo) {
        return -EINVAL;
    }
    file_drop_bo(file, bo);
    return 0;
}

static const struct driver_ioctl CORE_IOCTLS[] = {
    {DRM_VERSION, NO_CALL, get_version},
    {DRM_GEM_CLOSE, CALL_DESTROY, gem_close},
    {0},
};

static const struct driver_ioctl *find_ioctl(const struct driver_ioctl *table, uint32_t request)
{
    while (table->request && IOC_NR(table->request) != IOC_NR(request)) {
        table++;
    }
    return table->request ? table : NULL;
}

/* Calls the driver with a copy of the caller's struct, truncated or padded with zeros as in DRM. */
static int call(struct file *file, const struct driver_ioctl *entry, uint32_t request,
                uint64_t argument)
{
    uint64_t data[16] = {0};
    const uint32_t size = IOC_SIZE(entry->request), given = IOC_SIZE(request);
    const uint32_t both = size < given ? size : given;
    const uint32_t direction = IOC_DIR(entry->request) & IOC_DIR(request);
    if (direction & IOC_IN && user_read(data, argument, both)) {
        return -EFAULT;
    }
    const int result = entry->run(file, data);
    if (direction & IOC_OUT && user_write(argument, data, both)) {
        return -EFAULT;
    }
    return result;
}

static int ioctl_locked(struct file *file, uint32_t request, uint64_t argument)
{
    const struct driver_ioctl *entry = find_ioctl(CORE_IOCTLS, request);
    if (IOC_TYPE(request) != 'd') {
        return -ENOTTY;
    }
    if (!entry) {
        entry = find_ioctl(file->driver == ROCKET ? rocket_ioctls : rknpu_ioctls, request);
    }
    if (dead[file->driver]) {
        return -ENODEV;
    }
    if (!entry) {
        sim_log(1, "%s: ioctl %#x is not simulated", NAMES[file->driver], request);
        return -EINVAL;
    }
    file->fault = entry->call == NO_CALL ? (struct fault){NO_EFFECT, 0} : fault_at(entry->call);
    if (file->fault.effect == FAIL) {
        return -file->fault.error;
    }
    if (file->fault.effect == DEAD) {
        dead[file->driver] = true;
        return -ENODEV;
    }
    if (file->fault.effect == WEDGE) {
        cores_wedge(file->driver, true);
    }
    return call(file, entry, request, argument);
}

int device_ioctl(int fd, uint32_t request, uint64_t argument)
{
    if (!open_files) {
        return NOT_OURS;
    }
    pthread_mutex_lock(&sim_lock);
    struct file *file = find(fd);
    int result = NOT_OURS;
    if (file) {
        file->busy++;
        result = ioctl_locked(file, request, argument);
        file->busy--;
        sim_changed();
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static const struct bo *bo_at(const struct file *file, uint64_t offset)
{
    for (uint32_t i = 0; i < file->bo_count; i++) {
        if (file->bos[i] && file->bos[i]->offset == offset) {
            return file->bos[i];
        }
    }
    return NULL;
}

static bool any_has(const struct file *file, uint64_t offset)
{
    const struct file *other = files;
    while (other && (other->driver != file->driver || !bo_at(other, offset))) {
        other = other->next;
    }
    return other;
}

/* Maps the pages of a buffer of this file, shared, as drm_gem_mmap does; `offset` identifies the
 * buffer. */
int device_mmap(int fd, void *at, size_t size, int access, int flags, uint64_t offset, void **made)
{
    if (!open_files) {
        return NOT_OURS;
    }
    pthread_mutex_lock(&sim_lock);
    const struct file *file = find(fd);
    const struct bo *bo = file ? bo_at(file, offset) : NULL;
    int result = file ? -EINVAL : NOT_OURS;
    if (bo && size && size <= round_up(bo->size, PAGE) && (flags & MAP_TYPE) != MAP_PRIVATE) {
        *made = bo_map(bo, at, size, access, flags & MAP_FIXED);
        result = *made == MAP_FAILED ? -errno : 0;
    } else if (file && !bo && any_has(file, offset)) {
        result = -EACCES;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* --- fork and exit --------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&sim_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&sim_lock);
}

/* Resets the state of a child, which has its parent's files and buffers, but no threads or jobs. */
static void in_child(void)
{
    for (struct file *file = files; file; file = file->next) {
        file->jobs = file->busy = 0;
        space_forked(&file->own);
        for (uint32_t i = 0; i < file->bo_count; i++) {
            if (file->bos[i]) {
                file->bos[i]->writers = 0;
            }
        }
    }
    domains_forked();
    cores_forked();
    report_reset();
    pthread_mutex_unlock(&sim_lock);
}

/* Makes dlclose of this library ineffective, because the cores' threads run its code. */
static void stay_loaded(void)
{
    Dl_info self;
    if (dladdr(&files, &self)) {
        dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    }
}

__attribute__((constructor)) static void start(void)
{
    stay_loaded();
    settings_from_environment();
    pthread_atfork(before_fork, after_fork, in_child);
}

__attribute__((destructor)) static void stop(void)
{
    report_at_exit();
}
