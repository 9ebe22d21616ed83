/*
 * A short convolution between two gates, as in LFM2's layers without attention.
 *
 * out[t] = after[t] * sum_j w[j] u[t - J + 1 + j], u = before * value, J the kernel size.  The
 * products u are stored in a ring, for later tokens and for rollbacks.  Columns do not depend on
 * each other, and tokens are computed in order, so one run of many tokens gives the same bits as
 * many runs of one token.
 * Source: transformers modeling_lfm2.py.
 */
#include "kernels.h"

enum { LANES = 16 };

/* Computes columns [first, first + count) of all rows of a span. */
void AT_LEVEL(npurt_shortconv)(const npurt_shortconv *op, int64_t first, int64_t count,
                               const npurt_span *span)
{
    const int64_t k = op->out.k, kernel_size = op->kernel_size;
    float *ring = op->kept + span->slot * op->capacity * k;
    for (int64_t row = span->first; row < span->first + span->rows; row++) {
        const float *in = op->in + row * 3 * k, *from[NPURT_MOST_KERNEL_SIZE];
        const int64_t at = span->position + row - span->first;
        const int64_t begin = at < kernel_size - 1 ? kernel_size - 1 - at : 0;
        float *kept = ring + at % op->capacity * k;
        for (int64_t j = begin; j < kernel_size; j++) {
            from[j] = ring + (at - kernel_size + 1 + j) % op->capacity * k;
        }
        for (int64_t i = first; i < first + count; i += LANES) {
            f32x16 sum = 0.0f;
            store_f32(kept + i, load_f32(in + i) * load_f32(in + 2 * k + i));
            for (int64_t j = begin; j < kernel_size; j++) {
                sum = fma16(load_f32(from[j] + i), load_f32(op->weight + j * k + i), sum);
            }
            store_f32(op->out.values + row * k + i, load_f32(in + k + i) * sum);
        }
    }
}
