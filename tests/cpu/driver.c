/*
 * Runs programs of the CPU kernels from a file that Python wrote, and writes the resulting memory
 * to another file.  In this way kernels run where there is no Python, for example under an
 * emulator. tests/cpu/foreign.py writes and reads these files.
 *
 *   driver                  prints each instruction set and whether this machine runs it, 1 or 0
 *   driver IN OUT           runs the programs of IN
 *   driver --force IN OUT   also runs programs of an instruction set that this machine lacks
 *
 * IN   for each program: int64 ops, spans, selected, threads, buffers, pointers;
 *      [spans] of int64 {rows, position, slot, listed} and the int32 pages [listed];
 *      the int32 rows [selected]; the npurt_ops;
 *      [pointers] of int64 {offset in the ops, buffer, offset in the buffer};
 *      [buffers] of int64 size, and the bytes.
 * OUT  for each program: int64 result of npurt_run; the bytes of every buffer.
 *
 * Every buffer ends at an inaccessible page: a kernel that reads or writes past the end crashes.
 */
#define _GNU_SOURCE
#include "npurt_cpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    int64_t ops, spans, selected, threads, buffers, pointers;
} header;

typedef struct {
    int64_t rows, position, slot, listed;
} span_header;

typedef struct {
    int64_t offset, buffer, inside;
} pointer;

typedef struct {
    int64_t size;
    unsigned char *bytes;
} buffer;

static void fail(const char *why)
{
    fprintf(stderr, "driver: %s\n", why);
    exit(2);
}

/* Reads `size` bytes or fails; returns 0 at the end of the file. */
static int get(FILE *in, void *to, size_t size)
{
    const size_t have = fread(to, 1, size, in);
    if (have && have != size) {
        fail("the file is cut short");
    }
    return have == size;
}

static void *room(int64_t count, size_t size)
{
    void *p = calloc((size_t) count + 1, size);
    if (!p) {
        fail("no memory");
    }
    return p;
}

enum { PAGE = 4096 };

static size_t pages(int64_t size)
{
    return ((size_t) size + PAGE - 1) / PAGE * PAGE;
}

static unsigned char *guarded(int64_t size)
{
    const size_t inside = pages(size);
    unsigned char *p =
        mmap(NULL, inside + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + inside, PAGE, PROT_NONE)) {
        fail("no memory");
    }
    return p + inside - size;
}

/* Unmaps memory that `guarded` returned. */
static void drop(const void *bytes, int64_t size)
{
    const unsigned char *end = (const unsigned char *) bytes + size;
    munmap((void *) (uintptr_t) (end - pages(size)), pages(size) + PAGE);
}

static void read_memory(FILE *in, const header *h, npurt_op *ops, buffer *buffers)
{
    pointer *pointers = room(h->pointers, sizeof *pointers);
    get(in, ops, (size_t) h->ops * sizeof *ops);
    get(in, pointers, (size_t) h->pointers * sizeof *pointers);
    for (int64_t i = 0; i < h->buffers; i++) {
        get(in, &buffers[i].size, sizeof buffers[i].size);
        buffers[i].bytes = guarded(buffers[i].size);
        get(in, buffers[i].bytes, (size_t) buffers[i].size);
    }
    for (int64_t i = 0; i < h->pointers; i++) {
        const unsigned char *target = buffers[pointers[i].buffer].bytes + pointers[i].inside;
        memcpy((unsigned char *) ops + pointers[i].offset, &target, sizeof target);
    }
    free(pointers);
}

/* Reads an array into memory that ends at an inaccessible page. */
static int32_t *read_numbers(FILE *in, int64_t count)
{
    int32_t *numbers = (int32_t *) (void *) guarded(count * (int64_t) sizeof *numbers);
    get(in, numbers, (size_t) count * sizeof *numbers);
    return numbers;
}

static npurt_table read_table(FILE *in, const header *h)
{
    npurt_span *spans = room(h->spans, sizeof *spans);
    npurt_table table = {.count = h->spans, .spans = spans, .selects = h->selected};
    for (int64_t i = 0; i < h->spans; i++) {
        span_header s;
        get(in, &s, sizeof s);
        spans[i] = (npurt_span){.first = table.rows,
                                .rows = s.rows,
                                .position = s.position,
                                .slot = s.slot,
                                .pages = read_numbers(in, s.listed),
                                .listed = s.listed};
        table.rows += s.rows;
    }
    table.selected = read_numbers(in, h->selected);
    return table;
}

static void drop_table(const npurt_table *table)
{
    for (int64_t i = 0; i < table->count; i++) {
        const npurt_span *span = &table->spans[i];
        drop(span->pages, span->listed * (int64_t) sizeof *span->pages);
    }
    drop(table->selected, table->selects * (int64_t) sizeof *table->selected);
    free((void *) (uintptr_t) table->spans);
}

static void run_program(FILE *in, FILE *out, const header *h, int force)
{
    npurt_op *ops = room(h->ops, sizeof *ops);
    buffer *buffers = room(h->buffers, sizeof *buffers);
    const npurt_table table = read_table(in, h);
    read_memory(in, h, ops, buffers);
    for (int64_t i = 0; i < h->ops; i++) {
        /* This call also requests the kernel's permission for AMX. */
        if (!npurt_isa_works(ops[i].isa) && !force) {
            fail("this machine has not the instruction set");
        }
    }
    npurt_pool *pool = npurt_pool_new((int) h->threads, NULL, 0);
    if (!pool) {
        fail("no memory for the threads");
    }
    const int64_t done = npurt_run(pool, ops, (int) h->ops, &table);
    npurt_pool_free(pool);
    fwrite(&done, sizeof done, 1, out);
    for (int64_t i = 0; i < h->buffers; i++) {
        fwrite(buffers[i].bytes, 1, (size_t) buffers[i].size, out);
        drop(buffers[i].bytes, buffers[i].size);
    }
    drop_table(&table);
    free(buffers);
    free(ops);
}

int main(int argc, char **argv)
{
    const int force = argc == 4 && strcmp(argv[1], "--force") == 0;
    if (argc == 1) {
        for (int i = 0; i < npurt_isa_count(); i++) {
            printf("%s %d\n", npurt_isa_name(i), npurt_isa_works(i));
        }
        return 0;
    }
    FILE *in = argc < 3 ? NULL : fopen(argv[argc - 2], "rb");
    FILE *out = argc < 3 ? NULL : fopen(argv[argc - 1], "wb");
    if (!in || !out) {
        fail("cannot open the files; usage: driver [--force] IN OUT");
    }
    for (header h; get(in, &h, sizeof h);) {
        run_program(in, out, &h, force);
    }
    if (fclose(out)) {
        fail("cannot write the results");
    }
    return 0;
}
