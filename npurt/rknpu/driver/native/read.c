/* Scale sums into results: see npurt_rk.h.  Clang vectorises the loops. */
#include "run.h"

static void put(const npurt_rk_block *b, float *restrict y, int j, double value)
{
    float result = (float) value;
    y[j] = b->add ? y[j] + result : result;
}

static void read_integers(const npurt_rk_block *b, int i, int m, int passes, float *restrict y)
{
    const int32_t *high = (const int32_t *) b->sums + (int64_t) i * b->columns;
    const int32_t *low = high + (int64_t) m * b->columns;
    const double scale =
        passes == 2 ? b->scales[i] / (double) NPURT_RK_REMAINDER_STEPS : b->scales[i];
    if (b->slices == 1 && passes == 1) {
        for (int j = 0; j < b->n; j++) {
            put(b, y, j, high[j] * scale * b->w[j]);
        }
        return;
    }
    if (b->slices == 1) {
        for (int j = 0; j < b->n; j++) {
            put(b, y, j, (high[j] * (double) NPURT_RK_REMAINDER_STEPS + low[j]) * scale * b->w[j]);
        }
        return;
    }
    for (int j = 0; j < b->n; j++) {
        int64_t sum = 0;
        for (int s = 0; s < b->slices; s++) {
            const int64_t first = high[s * b->slice + j];
            sum += passes == 2 ? NPURT_RK_REMAINDER_STEPS * first + low[s * b->slice + j] : first;
        }
        put(b, y, j, (double) sum * scale * b->w[j]);
    }
}

static void read_floats(const npurt_rk_block *b, int i, float *restrict y)
{
    const float *sums = (const float *) b->sums + (int64_t) i * b->columns;
    for (int j = 0; j < b->n; j++) {
        double sum = 0;
        for (int s = 0; s < b->slices; s++) {
            sum += sums[s * b->slice + j];
        }
        put(b, y, j, sum * b->scales[i] * b->w[j]);
    }
}

void read_results(const npurt_rk_job *job)
{
    for (const npurt_rk_block *b = job->blocks; b < job->blocks + job->block_count; b++) {
        for (int i = 0; i < job->rows; i++) {
            float *out = job->y[b->y] + i * job->y_pitch[b->y] + b->first;
            if (job->floats) {
                read_floats(b, i, out);
            } else {
                read_integers(b, i, job->rows, job->passes, out);
            }
        }
    }
}
