/*
 * Finds the k largest numbers of a row, such as logits.
 *
 * A heap has the indices of the k largest numbers so far, with the smallest at its root.  Vector
 * comparisons skip blocks without a number above the root, which are most blocks.  So the row is
 * read once, at memory bandwidth.  Of equal numbers, the first wins.  NaN and -inf are left out.
 */
#include "kernels.h"
#include <math.h>

enum { LANES = 16, BLOCK_LANES = 64 };

INLINE int worse(const float *x, int32_t a, int32_t b)
{
    return x[a] < x[b] || (x[a] == x[b] && a > b);
}

/* Moves `id` from place `at` of the heap of `count` ids away from the root, to its place. */
static void sink(const float *x, int32_t *heap, int64_t count, int64_t at, int32_t id)
{
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && worse(x, heap[child + 1], heap[child]);
        if (!worse(x, heap[child], id)) {
            break;
        }
        heap[at] = heap[child];
    }
    heap[at] = id;
}

static void rise(const float *x, int32_t *heap, int64_t at, int32_t id)
{
    for (int64_t parent; at > 0 && worse(x, id, heap[parent = (at - 1) / 2]); at = parent) {
        heap[at] = heap[parent];
    }
    heap[at] = id;
}

/* Whether a number is above `floor` or NaN. */
INLINE int any_above(const float *x, float floor)
{
    const f32x16 least = floor;
    const i32x16 below = (load_f32(x) <= least) & (load_f32(x + LANES) <= least) &
                         (load_f32(x + 2 * LANES) <= least) & (load_f32(x + 3 * LANES) <= least);
    return __builtin_reduce_and(below) == 0;
}

int64_t npurt_best_of(const float *x, const npurt_range *ranges, int64_t ranges_count, int64_t k,
                      int32_t *best, int64_t *nans)
{
    int64_t count = 0;
    *nans = 0;
    float floor = -INFINITY;
    for (const npurt_range *range = ranges; range < ranges + ranges_count; range++) {
        for (int64_t start = range->first; start < range->end; start += BLOCK_LANES) {
            const int64_t left = range->end - start;
            if (left >= BLOCK_LANES && !any_above(x + start, floor)) {
                continue;
            }
            const int64_t end = left < BLOCK_LANES ? range->end : start + BLOCK_LANES;
            for (int64_t i = start; i < end; i++) {
                if (!(x[i] > floor)) {
                    *nans += isnan(x[i]);
                    continue;
                }
                if (count < k) {
                    rise(x, best, count, (int32_t) i);
                    count++;
                } else {
                    sink(x, best, k, 0, (int32_t) i);
                }
                floor = count == k ? x[best[0]] : -INFINITY;
            }
        }
    }
    for (int64_t left = count; left-- > 1;) { /* sorts the heap: the smallest is last */
        const int32_t last = best[left];
        best[left] = best[0];
        sink(x, best, left, 0, last);
    }
    return count;
}

int64_t npurt_best(const float *x, int64_t n, int64_t k, int32_t *best)
{
    int64_t nans;
    return npurt_best_of(x, &(npurt_range){0, n}, 1, k, best, &nans);
}
