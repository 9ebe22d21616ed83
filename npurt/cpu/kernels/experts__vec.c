/*
 * Chooses the experts of each row, and adds up their results.
 *
 * route         chooses the top_k experts of each row by score; of equal scores, the lower index
 *               wins.  Expert weights are the softmax over all experts or over the chosen ones.
 *               Then it lists the rows by expert, so that each expert's rows are contiguous.
 * weighted_sum  out = sum of weight * y over a row's experts, largest score first, plus the shared
 *               expert.
 *
 * A row's result does not depend on other rows; route processes all rows on one thread.
 * Source  llama.cpp build_moe_ffn (also for 2^-14, the smallest divisor of expert weights).
 */
#include "kernels.h"
#include <math.h>

enum { LANES = 16 };

_Static_assert(NPURT_MOST_EXPERTS % LANES == 0 &&
                   NPURT_MOST_EXPERTS * (sizeof(int64_t) + sizeof(float)) <= SCRATCH_BYTES,
               "scratch is too small for the arrays of route");

/* Replaces each score by exp(score - largest score); returns the denominator of the softmax. */
static float exponentials(const npurt_route *op, float *e, const int64_t *chosen)
{
    const f32x16 most = (f32x16) (e[chosen[0]]);
    f32x16 sum = 0.0f;
    for (int i = 0; i < op->experts; i += LANES) {
        const f32x16 v = exp16(load_f32(e + i) - most);
        store_f32(e + i, v);
        sum += v;
    }
    if (!op->over_chosen) {
        return sum16(sum);
    }
    float total = 0;
    for (int s = 0; s < op->top_k; s++) {
        total += e[chosen[s]];
    }
    return total;
}

/* Chooses the top_k experts of one row, and computes their weights. */
static void choose(const npurt_route *op, int64_t row, float *e, int64_t *chosen, float *weights)
{
    const int padded = (op->experts + LANES - 1) / LANES * LANES, top_k = op->top_k;
    const float *scores = op->scores + row * op->stride;
    int held = 0;
    for (int i = 0; i < padded; i++) {
        e[i] = i < op->experts ? scores[i] : -INFINITY;
    }
    for (int i = 0; i < op->experts; i++) {
        int at = held < top_k ? held++ : top_k;
        for (; at > 0 && !(e[chosen[at - 1]] >= e[i]); at--) {
            if (at < top_k) {
                chosen[at] = chosen[at - 1];
            }
        }
        if (at < top_k) {
            chosen[at] = i;
        }
    }
    const float whole = exponentials(op, e, chosen);
    float total = 0;
    for (int s = 0; s < top_k; s++) {
        weights[s] = e[chosen[s]] / whole;
        total += weights[s];
    }
    const float least = 0x1p-14f;
    const float divisor = !op->normed ? 1.0f : total < least ? least : total;
    for (int s = 0; s < top_k; s++) {
        weights[s] = weights[s] / divisor * op->scale;
    }
}

/* Writes the groups in the order of their experts.  next[e] is the number of rows of expert e, and
 * becomes the index of its first row. */
static void group(const npurt_route *op, int64_t copies, int64_t *next)
{
    const int64_t most = op->experts < copies ? op->experts : copies;
    int64_t first = 0;
    npurt_group *g = op->groups;
    for (int e = 0; e < op->experts; e++) {
        const int64_t rows = next[e];
        next[e] = first;
        if (rows) {
            *g++ = (npurt_group){e, (int32_t) rows, first};
        }
        first += rows;
    }
    for (; g < op->groups + most; g++) {
        *g = (npurt_group){0, 0, first};
    }
}

void AT_LEVEL(npurt_route)(const npurt_route *op, int64_t rows, float *scratch)
{
    int64_t *next = (int64_t *) (void *) scratch;
    float *e = (float *) (void *) (next + NPURT_MOST_EXPERTS);
    const int64_t copies = rows * op->top_k;
    memset(next, 0, (size_t) op->experts * sizeof *next);
    for (int64_t row = 0; row < rows; row++) {
        int64_t *chosen = op->scatter_indices + row * op->top_k;
        choose(op, row, e, chosen, op->expert_weights + row * op->top_k);
        for (int s = 0; s < op->top_k; s++) {
            next[chosen[s]]++;
        }
    }
    group(op, copies, next);
    for (int64_t i = 0; i < copies; i++) {
        const int64_t place = next[op->scatter_indices[i]]++;
        op->gather_indices[place] = i / op->top_k;
        op->scatter_indices[i] = place;
    }
}

static void add(float *restrict out, float weight, const float *restrict y, int64_t k)
{
    for (int64_t i = 0; i < k; i++) {
        out[i] = fmaf(weight, y[i], out[i]);
    }
}

void AT_LEVEL(npurt_weighted_sum)(const npurt_weighted_sum *op, int64_t row)
{
    const float *weights = op->expert_weights + row * op->top_k;
    const int64_t *indices = op->scatter_indices + row * op->top_k, k = op->k;
    float *out = op->out + row * k;
    const float gate = op->gate ? sigmoid16((f32x16) (op->gate[row * op->gate_stride])).x : 1.0f;
    memset(out, 0, (size_t) k * sizeof *out);
    for (int s = 0; s < op->top_k; s++) {
        add(out, weights[s], op->y + indices[s] * k, k);
    }
    if (op->shared) {
        add(out, gate, op->shared + row * k, k);
    }
}
