/*
 * Draws a token from logits, with top-k, top-p, min-p and temperature.
 *
 * Each sampler drops candidates from the end of the sorted list, so the largest few logits suffice.
 * Only top-p without top-k reads all logits, for the sum of all weights, e^(logit - largest logit).
 * numpy rounds sums of weights differently.  If a sum is so close to a bound that rounding could
 * change the result, npurt_sample refuses.  So numpy would draw the same token.
 */
#include "kernels.h"
#include <math.h>
#include <stdlib.h>

/* Numbers of candidates: the first and the last attempt without top-k; the largest top-k. */
enum { FIRST = 64, LAST = 512, MOST = 4096 };

/* Bounds of the relative error of a sum of weights. */
static const double OF_DOUBLES = 1e-11; /* MOST roundings of 2^-53 here and in numpy: 1e-12 */
static const double OF_FLOATS = 1e-5;   /* npurt_mass: 16 roundings of 2^-24, and exp16: 2e-6 */

typedef struct {
    int64_t count;
    int32_t ids[MOST];
    double below[MOST]; /* logit - largest logit */
} npurt_candidates;

typedef struct {
    npurt_candidates candidates;
    double weights[MOST];
} npurt_space;

/* Finds the k largest logits; returns 0 if a logit is NaN or +inf, or if there is no candidate. */
static int find(const npurt_sampling *s, const float *x, int64_t k, npurt_candidates *c)
{
    int64_t nans;
    c->count = npurt_best_of(x, s->allowed, s->allowed_count, k, c->ids, &nans);
    for (int64_t i = 0; i < c->count; i++) {
        c->below[i] = (double) x[c->ids[i]] - (double) x[c->ids[0]];
    }
    return !nans && c->count && x[c->ids[0]] < INFINITY;
}

/* Returns the sum of the weights of all allowed tokens. */
static double mass_of(const npurt_sampling *s, const float *x, float most)
{
    double sum = 0;
    for (int64_t i = 0; i < s->allowed_count; i++) {
        const npurt_range r = s->allowed[i];
        npurt_isas[s->isa].level->mass(x + r.first, r.end - r.first, most, &sum);
    }
    return sum;
}

/*
 * Returns the first i for which the sum of weights 0 to i is above `bound`; `count` if none is;
 * or NPURT_REFUSED if a sum is within `error` of the bound.
 */
static int64_t reach(const double *weights, int64_t count, double bound, double error)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += weights[i];
        if (!(fabs(sum - bound) > error)) {
            return NPURT_REFUSED;
        }
        if (sum > bound) {
            return i;
        }
    }
    return count;
}

/* Computes the weight e^(below / temperature) of each candidate; returns the sum of the weights. */
static double weigh(const npurt_candidates *c, double temperature, double *weights)
{
    double sum = 0;
    for (int64_t i = 0; i < c->count; i++) {
        weights[i] = exp(c->below[i] / temperature);
        sum += weights[i];
    }
    return sum;
}

/*
 * Drops candidates by min-p and top-p.  `all` is 1 if c has all candidates.  `mass` is the sum of
 * all weights; 0 means the sum of the weights in c.  Returns 1; 0 if the samplers may also keep
 * candidates that are not in c; or NPURT_REFUSED.
 */
static int filter(const npurt_sampling *s, npurt_candidates *c, int all, double mass,
                  double *weights)
{
    int64_t kept = 0;
    while (kept < c->count && c->below[kept] >= s->log_min_p) {
        kept++;
    }
    int cut = kept < c->count;
    if (s->top_p < 1) {
        const double sum = weigh(c, 1, weights), total = mass > 0 ? mass : sum;
        const double error = total * (mass > 0 ? OF_FLOATS : OF_DOUBLES);
        const int64_t last = reach(weights, kept, s->top_p * total, error);
        if (last == NPURT_REFUSED) {
            return NPURT_REFUSED;
        }
        cut |= last < kept;
        kept = last < kept ? last + 1 : kept;
    }
    c->count = kept > 1 ? kept : 1;
    return cut || all;
}

/* Draws a token; `own` has space for the candidates and their weights. */
static int64_t draw(const npurt_sampling *s, const float *x, double random, npurt_space *own)
{
    const int64_t most = s->top_k ? s->top_k : LAST;
    npurt_candidates *c = &own->candidates;
    double *weights = own->weights, mass = 0;
    for (int64_t k = s->top_k ? most : FIRST; k <= most; k *= 8) {
        if (!find(s, x, k, c)) {
            return NPURT_REFUSED;
        }
        if (!s->top_k && s->top_p < 1 && mass == 0) {
            mass = mass_of(s, x, x[c->ids[0]]);
        }
        const int right = filter(s, c, s->top_k || c->count < k, mass, weights);
        if (right == NPURT_REFUSED) {
            return NPURT_REFUSED;
        }
        if (right) {
            const double sum = weigh(c, s->temperature, weights);
            const int64_t at = reach(weights, c->count, random * sum, sum * OF_DOUBLES);
            return at >= 0 && at < c->count ? c->ids[at] : NPURT_REFUSED;
        }
    }
    return NPURT_REFUSED;
}

/* The space is on the heap: it has 80 KB, and the stack of a thread may have only 64 KiB. */
int64_t npurt_sample(const npurt_sampling *s, const float *x, int64_t n, double random)
{
    const npurt_range last = s->allowed[s->allowed_count - 1];
    if (s->top_k > MOST || last.first > n || last.end > n) {
        return NPURT_REFUSED;
    }
    npurt_space *own = malloc(sizeof *own);
    if (!own) {
        return NPURT_REFUSED;
    }
    const int64_t drawn = draw(s, x, random, own);
    free(own);
    return drawn;
}
