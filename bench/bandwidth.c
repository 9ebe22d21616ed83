/*
 * Read bandwidth: bandwidth BYTES THREADS STREAMS PASSES prints GB/s (10^9) of each pass.
 *
 * Every thread is pinned to one of the CPUs that the process may use.  It touches its share of the
 * buffer, then reads it as STREAMS contiguous streams side by side, with 64-byte loads and huge
 * pages.  The streams start in different cache sets; at distances of a power of two they would
 * evict each other.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef uint64_t Line __attribute__((vector_size(64)));
enum { LOADS = 8, MAX_THREADS = 256 }; /* loads per iteration, each added to its own sum */

typedef struct {
    int cpu;
    int streams;
    int passes;
    size_t length; /* of a stream, in lines */
    Line sum;      /* stored, so that the compiler keeps all loads */
    double seconds[];
} Share;

static pthread_barrier_t barrier;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Inlined with a constant number of streams, so that the loops over LOADS are unrolled. */
static inline __attribute__((always_inline)) Line read_all(const Line *p, size_t length,
                                                           int streams)
{
    Line sum[LOADS] = {0};
    for (size_t i = 0; i < length; i += LOADS / streams) {
        for (int j = 0; j < LOADS; j++) {
            sum[j] ^= p[(j % streams) * length + i + j / streams];
        }
    }
    for (int j = 1; j < LOADS; j++) {
        sum[0] ^= sum[j];
    }
    return sum[0];
}

static Line read_streams(const Line *p, size_t length, int streams)
{
    switch (streams) {
    case 1:
        return read_all(p, length, 1);
    case 2:
        return read_all(p, length, 2);
    case 4:
        return read_all(p, length, 4);
    default:
        return read_all(p, length, 8);
    }
}

static void *run(void *arg)
{
    Share *share = arg;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(share->cpu, &set);
    sched_setaffinity(0, sizeof set, &set);

    const size_t bytes = share->streams * share->length * sizeof(Line);
    Line *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    for (int pass = 0; pass < share->passes; pass++) {
        pthread_barrier_wait(&barrier);
        const double start = now();
        share->sum ^= read_streams(p, share->length, share->streams);
        pthread_barrier_wait(&barrier);
        share->seconds[pass] = now() - start;
    }
    return NULL;
}

static int nth_cpu(int n)
{
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    int cpu = -1;
    for (n %= CPU_COUNT(&set); n >= 0; n--) {
        do {
            cpu++;
        } while (!CPU_ISSET(cpu, &set));
    }
    return cpu;
}

int main(int argc, char **argv)
{
    const size_t bytes = argc == 5 ? strtoull(argv[1], NULL, 10) : 0;
    const int threads = bytes ? atoi(argv[2]) : 0, streams = bytes ? atoi(argv[3]) : 0;
    const int passes = bytes ? atoi(argv[4]) : 0;
    if (bytes < 1 << 20 || threads < 1 || threads > MAX_THREADS || streams < 1 || LOADS % streams ||
        passes < 1) {
        fprintf(stderr, "usage: bandwidth BYTES THREADS STREAMS(1, 2, 4, 8) PASSES\n");
        return 2;
    }
    const size_t groups = bytes / threads / streams / sizeof(Line) / LOADS;
    const size_t length = ((groups - 1) | 1) * LOADS; /* an odd number of groups */
    pthread_t thread[MAX_THREADS];
    Share *share[MAX_THREADS];
    pthread_barrier_init(&barrier, NULL, threads);
    for (int i = 0; i < threads; i++) {
        const size_t size = (sizeof(Share) + passes * sizeof(double) + 63) / 64 * 64;
        share[i] = aligned_alloc(64, size);
        *share[i] = (Share){nth_cpu(i), streams, passes, length, {0}};
        if (pthread_create(&thread[i], NULL, run, share[i])) {
            perror("pthread_create");
            return 1;
        }
    }
    Line sum = {0};
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        sum ^= share[i]->sum;
    }
    const double nbytes = (double) threads * streams * length * sizeof(Line);
    for (int pass = 0; pass < passes; pass++) {
        printf("%.3f\n", nbytes / share[0]->seconds[pass] * 1e-9);
    }
    return sum[0] == 42; /* never true: all bytes are equal */
}
