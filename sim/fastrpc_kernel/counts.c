/* Counts the requests to the driver: calls, arguments, maps, and DMA_BUF_IOCTL_SYNC. */
#include "kernel.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    uint64_t calls, arguments, shared_bytes, copied_bytes, maps, mapped_bytes, syncs, synced_bytes;
} counted;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

void count_call(const driver_invoke *asked)
{
    const driver_argument *a = (const driver_argument *) (uintptr_t) asked->arguments;
    uint32_t buffers = (asked->scalars >> 16 & 255) + (asked->scalars >> 8 & 255);
    pthread_mutex_lock(&counting);
    counted.calls++;
    counted.arguments += buffers;
    for (uint32_t i = 0; i < buffers; i++) {
        *(a[i].fd > 0 ? &counted.shared_bytes : &counted.copied_bytes) += a[i].bytes;
    }
    pthread_mutex_unlock(&counting);
}

void count_map(uint64_t bytes)
{
    pthread_mutex_lock(&counting);
    counted.maps++;
    counted.mapped_bytes += bytes;
    pthread_mutex_unlock(&counting);
}

void count_sync(uint64_t bytes)
{
    pthread_mutex_lock(&counting);
    counted.syncs++;
    counted.synced_bytes += bytes;
    pthread_mutex_unlock(&counting);
}

void count_tell(void)
{
    const char *name = getenv("NPURT_KERNEL_COUNTS");
    FILE *file = name ? fopen(name, "a") : NULL;
    if (!file) {
        return;
    }
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"calls", counted.calls},
        {"arguments", counted.arguments},
        {"shared_bytes", counted.shared_bytes},
        {"copied_bytes", counted.copied_bytes},
        {"maps", counted.maps},
        {"mapped_bytes", counted.mapped_bytes},
        {"syncs", counted.syncs},
        {"synced_bytes", counted.synced_bytes},
    };
    fprintf(file, "{\"pid\": %d", getpid());
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fprintf(file, ", \"%s\": %llu", rows[i].name, (unsigned long long) rows[i].value);
    }
    fprintf(file, "}\n");
    fclose(file);
}
