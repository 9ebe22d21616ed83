/*
 * A program that knows the two drivers from their headers alone: it multiplies int8 matrices on the
 * NPU with its own register list, and compares.  Prints one line; exit status 0 when all is right.
 *
 *     foreign rocket|rknpu M K N [cores]        rows of A, C plain; K and N multiples of 32
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- include/uapi/drm/rocket_accel.h ------------------------------------------------------- */
struct drm_rocket_create_bo {
    uint32_t size, handle;
    uint64_t dma_address, offset;
};
struct drm_rocket_prep_bo {
    uint32_t handle, reserved;
    int64_t timeout_ns;
};
struct drm_rocket_fini_bo {
    uint32_t handle, reserved;
};
struct drm_rocket_task {
    uint32_t regcmd, regcmd_count;
};
struct drm_rocket_job {
    uint64_t tasks, in_bo_handles, out_bo_handles;
    uint32_t task_count, task_struct_size, in_bo_handle_count, out_bo_handle_count;
};
struct drm_rocket_submit {
    uint64_t jobs;
    uint32_t job_count, job_struct_size;
    uint64_t reserved;
};
#define DRM_IOCTL_ROCKET_CREATE_BO _IOWR('d', 0x40, struct drm_rocket_create_bo)
#define DRM_IOCTL_ROCKET_SUBMIT _IOW('d', 0x41, struct drm_rocket_submit)
#define DRM_IOCTL_ROCKET_PREP_BO _IOW('d', 0x42, struct drm_rocket_prep_bo)
#define DRM_IOCTL_ROCKET_FINI_BO _IOW('d', 0x43, struct drm_rocket_fini_bo)

/* --- rknpu_ioctl.h --------------------------------------------------------------------------- */
struct rknpu_mem_create {
    uint32_t handle, flags;
    uint64_t size, obj_addr, dma_addr, sram_size;
    int32_t iommu_domain_id;
    uint32_t core_mask;
};
struct rknpu_mem_map {
    uint32_t handle, reserved;
    uint64_t offset;
};
struct rknpu_mem_destroy {
    uint32_t handle, reserved;
    uint64_t obj_addr;
};
struct rknpu_mem_sync {
    uint32_t flags, reserved;
    uint64_t obj_addr, offset, size;
};
struct rknpu_task {
    uint32_t flags, op_idx, enable_mask, int_mask, int_clear, int_status;
    uint32_t regcfg_amount, regcfg_offset;
    uint64_t regcmd_addr;
} __attribute__((packed));
struct rknpu_submit {
    uint32_t flags, timeout, task_start, task_number, task_counter;
    int32_t priority;
    uint64_t task_obj_addr;
    uint32_t iommu_domain_id, reserved;
    uint64_t task_base_addr;
    int64_t hw_elapse_time;
    uint32_t core_mask;
    int32_t fence_fd;
    struct {
        uint32_t task_start, task_number;
    } subcore_task[5];
};
#define DRM_IOCTL_RKNPU_SUBMIT _IOWR('d', 0x41, struct rknpu_submit)
#define DRM_IOCTL_RKNPU_MEM_CREATE _IOWR('d', 0x42, struct rknpu_mem_create)
#define DRM_IOCTL_RKNPU_MEM_MAP _IOWR('d', 0x43, struct rknpu_mem_map)
#define DRM_IOCTL_RKNPU_MEM_DESTROY _IOWR('d', 0x44, struct rknpu_mem_destroy)
#define DRM_IOCTL_RKNPU_MEM_SYNC _IOWR('d', 0x45, struct rknpu_mem_sync)

/* --- drm.h ------------------------------------------------------------------------------------ */
struct drm_version {
    int version_major, version_minor, version_patchlevel;
    size_t name_len;
    char *name;
    size_t date_len;
    char *date;
    size_t desc_len;
    char *desc;
};
#define DRM_IOCTL_VERSION _IOWR('d', 0x00, struct drm_version)

static int is_rocket;

static void die(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void must(int result, const char *what)
{
    if (result < 0) {
        die(what);
    }
}

/* --- buffers ---------------------------------------------------------------------------------- */
struct buffer {
    uint32_t handle;
    uint64_t iova, object;
    size_t size;
    uint8_t *bytes;
};

static struct buffer allocate(int fd, size_t size, uint32_t flags)
{
    struct buffer made = {.size = size};
    uint64_t offset;
    if (is_rocket) {
        struct drm_rocket_create_bo create = {.size = (uint32_t) size};
        must(ioctl(fd, DRM_IOCTL_ROCKET_CREATE_BO, &create), "CREATE_BO");
        made.handle = create.handle;
        made.iova = create.dma_address;
        offset = create.offset;
    } else {
        struct rknpu_mem_create create = {.flags = flags, .size = size};
        must(ioctl(fd, DRM_IOCTL_RKNPU_MEM_CREATE, &create), "MEM_CREATE");
        struct rknpu_mem_map map = {.handle = create.handle};
        must(ioctl(fd, DRM_IOCTL_RKNPU_MEM_MAP, &map), "MEM_MAP");
        made.handle = create.handle;
        made.iova = create.dma_addr;
        made.object = create.obj_addr;
        offset = map.offset;
    }
    made.bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t) offset);
    if (made.bytes == MAP_FAILED) {
        die("mmap");
    }
    return made;
}

static void hand_over(int fd, const struct buffer *b)
{
    if (is_rocket) {
        struct drm_rocket_fini_bo fini = {.handle = b->handle};
        must(ioctl(fd, DRM_IOCTL_ROCKET_FINI_BO, &fini), "FINI_BO");
    } else {
        struct rknpu_mem_sync sync = {.flags = 1, .obj_addr = b->object, .size = b->size};
        must(ioctl(fd, DRM_IOCTL_RKNPU_MEM_SYNC, &sync), "MEM_SYNC");
    }
}

static void take_back(int fd, const struct buffer *b)
{
    if (is_rocket) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        struct drm_rocket_prep_bo prep = {.handle = b->handle};
        prep.timeout_ns = (now.tv_sec + 10) * 1000000000LL + now.tv_nsec;
        must(ioctl(fd, DRM_IOCTL_ROCKET_PREP_BO, &prep), "PREP_BO");
    } else {
        struct rknpu_mem_sync sync = {.flags = 2, .obj_addr = b->object, .size = b->size};
        must(ioctl(fd, DRM_IOCTL_RKNPU_MEM_SYNC, &sync), "MEM_SYNC");
    }
}

/* --- the register list ------------------------------------------------------------------------ */
struct list {
    uint64_t *words;
    uint32_t count;
};

static void emit(struct list *list, uint64_t target, uint32_t offset, uint32_t value)
{
    list->words[list->count++] = target << 48 | (uint64_t) value << 16 | offset;
}

static void emit_zeros(struct list *list, uint64_t target, uint32_t first, uint32_t last)
{
    for (uint32_t offset = first; offset <= last; offset += 4) {
        emit(list, target, offset, 0);
    }
}

struct matrix {
    uint32_t m, k, n, columns; /* of a row of C */
    uint32_t a, b, c;
};

static void emit_cna(struct list *l, const struct matrix *x)
{
    const uint64_t cna = 0x0201;
    const uint32_t entries = (x->k + 63) / 64, data = (x->m * entries * 64 + 32767) / 32768;
    emit(l, cna, 0x100C, 0x20000000);
    emit(l, cna, 0x1010, (x->m + 1) << 4);
    emit(l, cna, 0x1014, 9);
    emit(l, cna, 0x1020, 1 << 16 | x->m);
    emit(l, cna, 0x1024, (x->k - 1) << 16 | x->k);
    emit(l, cna, 0x1028, 1);
    emit(l, cna, 0x102C, x->m);
    emit(l, cna, 0x1030, x->k * x->n);
    emit(l, cna, 0x1034, x->k);
    emit(l, cna, 0x1038, 0x01010000 | x->n);
    emit(l, cna, 0x1040, (12 - data) << 4 | data);
    emit(l, cna, 0x1044, entries);
    emit(l, cna, 0x104C, 0xB);
    for (uint32_t offset = 0x1050; offset <= 0x105C; offset += 4) {
        emit(l, cna, offset, 0x10000);
    }
    emit_zeros(l, cna, 0x1060, 0x1068);
    emit(l, cna, 0x1070, x->a);
    emit(l, cna, 0x1074, 0);
    emit(l, cna, 0x1078, 0x000F000F);
    emit(l, cna, 0x107C, x->k / 16);
    emit(l, cna, 0x1080, 0);
    emit(l, cna, 0x1084, 1 << 16 | x->m);
    emit(l, cna, 0x1088, x->k);
    emit_zeros(l, cna, 0x1100, 0x1104);
    emit(l, cna, 0x1110, x->b);
    emit_zeros(l, cna, 0x1140, 0x117C);
    emit_zeros(l, cna, 0x1180, 0x1184);
}

static void emit_dpu(struct list *l, const struct matrix *x)
{
    const uint64_t core = 0x0801, dpu = 0x1001;
    const uint32_t notch = x->columns / 4 - 1;
    emit(l, core, 0x3010, 0);
    emit(l, core, 0x3014, (x->m - 1) << 16);
    emit(l, core, 0x3018, x->n - 1);
    emit(l, core, 0x301C, 0);
    emit(l, core, 0x3030, 0);
    emit(l, dpu, 0x400C, 0x1E4);
    emit(l, dpu, 0x4010, 0x80000000);
    emit(l, dpu, 0x4014, 0);
    emit(l, dpu, 0x4020, x->c);
    emit(l, dpu, 0x4024, 16);
    emit(l, dpu, 0x4030, 0);
    emit(l, dpu, 0x4034, x->m - 1);
    emit(l, dpu, 0x4038, notch << 16 | notch);
    emit(l, dpu, 0x403C, (x->n - 1) << 16 | (x->n - 1));
    emit(l, dpu, 0x4040, 0x53);
    emit_zeros(l, dpu, 0x4044, 0x404C);
    emit(l, dpu, 0x4050, 0x7FE);
    emit(l, dpu, 0x4054, 0);
    emit(l, dpu, 0x4058, x->n - 1);
    emit(l, dpu, 0x405C, (x->m - 1) << 16);
    emit(l, dpu, 0x4060, 0x53);
    emit_zeros(l, dpu, 0x4064, 0x406C);
    emit(l, dpu, 0x4070, 0x383);
    emit(l, dpu, 0x4074, 0);
    emit(l, dpu, 0x4078, 1);
    emit_zeros(l, dpu, 0x407C, 0x4080);
    emit(l, dpu, 0x4084, 1);
    emit(l, dpu, 0x4088, 0);
    emit_zeros(l, dpu, 0x4090, 0x40AC);
    emit(l, dpu, 0x40C0, 0x80);
    emit(l, dpu, 0x40C4, 0);
    emit_zeros(l, dpu, 0x4100, 0x412C);
}

static void emit_rdma(struct list *l, const struct matrix *x)
{
    const uint64_t rdma = 0x2001;
    emit(l, rdma, 0x500C, 0);
    emit(l, rdma, 0x5010, x->m - 1);
    emit(l, rdma, 0x5014, x->n - 1);
    emit_zeros(l, rdma, 0x5018, 0x5020);
    emit_zeros(l, rdma, 0x5028, 0x502C);
    emit(l, rdma, 0x5034, 1);
    emit(l, rdma, 0x5038, 0);
    emit(l, rdma, 0x5040, 0);
    emit(l, rdma, 0x5044, 0x7810);
    emit_zeros(l, rdma, 0x5048, 0x504C);
    emit(l, rdma, 0x5064, 0);
    emit(l, rdma, 0x5068, 0x01010101);
    emit(l, rdma, 0x506C, 0);
}

static uint32_t write_list(uint64_t *words, const struct matrix *x)
{
    struct list l = {words, 0};
    emit(&l, 0x1001, 0x4004, 0xE);
    emit(&l, 0x2001, 0x5004, 0xE);
    emit_cna(&l, x);
    emit_dpu(&l, x);
    emit_rdma(&l, x);
    emit(&l, 0, 0, 0);
    emit(&l, 0x0101, 0x14, 0);
    emit(&l, 0x0041, 0, 0);
    emit(&l, 0x0081, 8, 0x1D);
    return l.count;
}

/* --- one product ------------------------------------------------------------------------------ */
struct buffers {
    struct buffer list, tasks, a, b, c;
};

static void submit_rocket(int fd, const struct buffers *x, uint32_t words)
{
    struct drm_rocket_task task = {(uint32_t) x->list.iova, words};
    uint32_t in[] = {x->list.handle, x->a.handle, x->b.handle}, out[] = {x->c.handle};
    struct drm_rocket_job job = {
        (uintptr_t) &task, (uintptr_t) in, (uintptr_t) out, 1, sizeof(task), 3, 1};
    struct drm_rocket_submit submit = {(uintptr_t) &job, 1, sizeof(job), 0};
    must(ioctl(fd, DRM_IOCTL_ROCKET_SUBMIT, &submit), "SUBMIT");
}

/* One task a core, each with its own columns of C. */
static void submit_rknpu(int fd, const struct buffers *x, uint32_t words, uint32_t cores)
{
    struct rknpu_task *tasks = (struct rknpu_task *) x->tasks.bytes;
    struct rknpu_submit submit = {.flags = 5,
                                  .timeout = 6000,
                                  .task_number = cores,
                                  .task_obj_addr = x->tasks.object,
                                  .fence_fd = -1,
                                  .core_mask = (1u << cores) - 1};
    for (uint32_t i = 0; i < cores; i++) {
        tasks[i] = (struct rknpu_task){.enable_mask = 0x1D,
                                       .int_mask = 0x300,
                                       .int_clear = 0x1FFFF,
                                       .regcfg_amount = words - 4,
                                       .regcmd_addr = x->list.iova + 1024 * i};
        const uint32_t slot = cores == 3 ? i + 2 : i;
        submit.subcore_task[slot].task_start = i;
        submit.subcore_task[slot].task_number = 1;
    }
    must(ioctl(fd, DRM_IOCTL_RKNPU_SUBMIT, &submit), "SUBMIT");
    if (submit.task_counter != cores) {
        die("task_counter");
    }
}

static void fill(struct buffers *x, const struct matrix *size, int8_t *b)
{
    for (uint32_t i = 0; i < size->m * size->k; i++) {
        x->a.bytes[i] = (uint8_t) rand();
    }
    for (uint32_t n = 0; n < size->n; n++) {
        for (uint32_t k = 0; k < size->k; k++) {
            const size_t packed =
                (size_t) n / 32 * 32 * size->k + k / 32 * 1024 + n % 32 * 32 + k % 32;
            b[(size_t) n * size->k + k] = (int8_t) rand();
            x->b.bytes[packed] = (uint8_t) b[(size_t) n * size->k + k];
        }
    }
}

static int count_wrong(const struct buffers *x, const struct matrix *size, const int8_t *b)
{
    const int8_t *a = (const int8_t *) x->a.bytes;
    const int32_t *c = (const int32_t *) x->c.bytes;
    int wrong = 0;
    for (uint32_t m = 0; m < size->m; m++) {
        for (uint32_t n = 0; n < size->n; n++) {
            int64_t sum = 0;
            for (uint32_t k = 0; k < size->k; k++) {
                sum += a[(size_t) m * size->k + k] * b[(size_t) n * size->k + k];
            }
            wrong += c[(size_t) m * size->n + n] != sum;
        }
    }
    return wrong;
}

static void check_node(int fd, const char *path, const char *driver)
{
    char name[16] = "";
    struct stat by_path, by_fd;
    struct drm_version version = {.name = name, .name_len = sizeof(name) - 1};
    must(ioctl(fd, DRM_IOCTL_VERSION, &version), "VERSION");
    must(stat(path, &by_path), "stat");
    must(fstat(fd, &by_fd), "fstat");
    if (strcmp(name, driver) || !S_ISCHR(by_path.st_mode) || by_fd.st_rdev != by_path.st_rdev) {
        printf("%s is not %s\n", path, driver);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        return 2;
    }
    is_rocket = !strcmp(argv[1], "rocket");
    const char *path = is_rocket ? "/dev/accel/accel0" : "/dev/dri/renderD128";
    const uint32_t cores = argc > 5 ? (uint32_t) atoi(argv[5]) : 1;
    struct matrix size = {(uint32_t) atoi(argv[2]),
                          (uint32_t) atoi(argv[3]),
                          (uint32_t) atoi(argv[4]),
                          (uint32_t) atoi(argv[4]),
                          0,
                          0,
                          0};
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    must(fd, path);
    check_node(fd, path, argv[1]);
    struct buffers x = {
        allocate(fd, 4096, 0),
        allocate(fd, 4096, 8),
        allocate(fd, size.m * size.k, 0x13),
        allocate(fd, (size_t) size.n * size.k, 0x13),
        allocate(fd, (size_t) size.m * size.n * 4, 0x13),
    };
    int8_t *b = malloc((size_t) size.n * size.k);
    uint32_t words = 0;
    fill(&x, &size, b);
    memset(x.c.bytes, 0x77, x.c.size);
    for (uint32_t i = 0; i < cores; i++) {
        struct matrix part = size;
        part.n = size.n / cores;
        part.a = (uint32_t) x.a.iova;
        part.b = (uint32_t) (x.b.iova + i * part.n * size.k);
        part.c = (uint32_t) (x.c.iova + i * part.n * 4);
        words = write_list((uint64_t *) (x.list.bytes + 1024 * i), &part);
    }
    hand_over(fd, &x.a);
    hand_over(fd, &x.b);
    hand_over(fd, &x.c);
    if (is_rocket) {
        hand_over(fd, &x.list);
        submit_rocket(fd, &x, words);
    } else {
        submit_rknpu(fd, &x, words, cores);
    }
    take_back(fd, &x.c);
    const int wrong = count_wrong(&x, &size, b);
    munmap(x.c.bytes, x.c.size);
    must(close(fd), "close");
    printf("%s %ux%ux%u: %d wrong of %u\n", argv[1], size.m, size.k, size.n, wrong,
           size.m * size.n);
    return wrong != 0;
}
