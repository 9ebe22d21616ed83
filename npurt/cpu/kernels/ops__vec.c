/*
 * Elementwise and row-wise ops: sums, norms, quantisation of activations, gated units, RoPE.
 *
 * Rows are tokens.  Every function computes one row, so a row's result does not depend on other
 * rows of the batch.  Elements past the last whole vector are computed one by one, in order.
 */
#include "kernels.h"
#include <math.h>

/* Stores whole numbers as int8. */
INLINE void put_codes(f32x32 whole, int8_t *codes)
{
    const i8x32 narrow = __builtin_convertvector(__builtin_convertvector(whole, i32x32), i8x32);
    memcpy(codes, &narrow, sizeof narrow);
}

/* Returns the block of 32 numbers in units of `scale`.  The numbers have at most 16 bits, so their
 * sums are exact in float32. */
INLINE npurt_block block_of(f32x32 whole, float scale)
{
    const i32x32 wide = __builtin_convertvector(whole, i32x32);
    const int32_t first = __builtin_reduce_add(wide.lo), last = __builtin_reduce_add(wide.hi);
    return (npurt_block){
        .scale = scale,
        .sum = scale * (float) (first + last),
        .minus = -(first + last),
        .sums = {scale * (float) first, scale * (float) last},
        .minuses = {-first, -last},
    };
}

/*
 * Computes the codes, scales and sums of blocks [first, first + count) of one row.
 *
 * A block's scale is max|x| / 127, and its codes are rint(x * (127 / max|x|)).  If 127 / max|x|
 * overflows, the block is zero.  A block with NaN or infinity gets the scale NaN, so that results
 * are NaN, and codes of zero, because C does not define the conversion of NaN to an integer.
 * Remainders are the rounding errors of the codes, in units of scale / 255, which then becomes the
 * block's scale.  A rounding error of half the first scale is 127.5 units, so remainders are
 * clamped to the range -127 to 127 that the kernels rely on.  If 255 * 127 / max|x| overflows,
 * remainders are zero.
 */
void AT_LEVEL(npurt_quantise)(const npurt_input *x, int64_t row, int64_t first, int64_t count)
{
    const float steps = REMAINDER_STEPS;
    const int64_t blocks = x->k / BLOCK;
    for (int64_t b = first; b < first + count; b++) {
        const int64_t at = row * blocks + b;
        f32x32 v;
        memcpy(&v, x->values + at * BLOCK, sizeof v);
        const f32x32 big = __builtin_elementwise_abs(v);
        const float most = max16(larger(big.lo, big.hi));
        const float finite = sum16(v.lo * 0.0f + v.hi * 0.0f); /* 0, or NaN */
        float inverse = 127.0f / most, scale = most / 127.0f + finite;
        if (!(inverse < INFINITY)) {
            inverse = 0;
            scale = finite;
        }
        f32x32 whole = finite == 0 ? __builtin_elementwise_rint(v * inverse) : (f32x32) (0.0f);
        put_codes(whole, x->codes + at * BLOCK);
        if (x->remainders) {
            const float factor = inverse * steps < INFINITY ? inverse * steps : 0;
            const f32x32 rest = __builtin_elementwise_fma(-whole, (f32x32) (scale), v);
            f32x32 remainders = __builtin_elementwise_rint(rest * factor);
            remainders = __builtin_elementwise_max(remainders, (f32x32) (-127.0f)); /* NaN: -127 */
            remainders = __builtin_elementwise_min(remainders, (f32x32) (127.0f));
            put_codes(remainders, x->remainders + at * BLOCK);
            whole = whole * steps + remainders;
            scale /= steps;
        }
        x->blocks[at] = block_of(whole, scale);
    }
}

/* x += scale * add, rounded once. */
static void add_scaled(float *restrict x, const float *restrict add, float scale, int64_t k)
{
    if (scale == 1) { /* the same result, faster on CPUs without a fused multiply-add */
        for (int64_t i = 0; i < k; i++) {
            x[i] += add[i];
        }
        return;
    }
    for (int64_t i = 0; i < k; i++) {
        x[i] = fmaf(scale, add[i], x[i]);
    }
}

void AT_LEVEL(npurt_sum)(const npurt_sum *op, int64_t row)
{
    const int64_t k = op->out.k;
    if (op->add) {
        add_scaled(op->x + row * op->stride, op->add + row * k, op->scale, k);
    }
    if (op->out.codes) {
        AT_LEVEL(npurt_quantise)(&op->out, row, 0, k / BLOCK);
    }
}

/* Caps columns [first, first + count) of one row. */
void AT_LEVEL(npurt_cap)(const npurt_cap *op, int64_t row, int64_t first, int64_t count)
{
    float *x = op->x + row * op->k + first;
    int64_t i = 0;
    if (!(op->cap > 0)) {
        for (; i < count; i++) {
            x[i] *= op->factor;
        }
    }
    for (; i + 16 <= count; i += 16) {
        store_f32(x + i, op->cap * tanh16(op->factor * load_f32(x + i) / op->cap));
    }
    for (; i < count; i++) {
        x[i] = op->cap * tanh16((f32x16) (op->factor * x[i] / op->cap)).x;
    }
}

static float mean_of(const float *x, int64_t k)
{
    const int64_t whole = k / 16 * 16;
    f32x16 sums = 0.0f;
    for (int64_t i = 0; i < whole; i += 16) {
        sums += load_f32(x + i);
    }
    float total = sum16(sums);
    for (int64_t i = whole; i < k; i++) {
        total += x[i];
    }
    return total / (float) k;
}

/* 1 / sqrt(mean((x - mean)^2) + eps) */
INLINE float inverse_of(const float *x, int64_t k, float mean, float eps)
{
    const int64_t whole = k / 16 * 16;
    f32x16 squares = 0.0f;
    for (int64_t i = 0; i < whole; i += 16) {
        const f32x16 v = load_f32(x + i) - mean;
        squares = fma16(v, v, squares);
    }
    float total = sum16(squares);
    for (int64_t i = whole; i < k; i++) {
        total = fmaf(x[i] - mean, x[i] - mean, total);
    }
    return 1.0f / sqrtf(total / (float) k + eps);
}

static void layer_norm(const npurt_norm *op, const float *x, float *out)
{
    const int64_t k = op->out.k;
    const float mean = mean_of(x, k), inverse = inverse_of(x, k, mean, op->eps);
    for (int64_t i = 0; i < k; i++) {
        out[i] = (x[i] - mean) * inverse * op->weight[i];
    }
    for (int64_t i = 0; op->bias && i < k; i++) {
        out[i] += op->bias[i];
    }
}

static void rms_norm(const npurt_norm *op, const float *x, float *out)
{
    const int64_t k = op->out.k;
    const float inverse = inverse_of(x, k, 0.0f, op->eps);
    for (int64_t i = 0; i < k; i++) {
        out[i] = x[i] * inverse * op->weight[i];
    }
}

void AT_LEVEL(npurt_norm)(const npurt_norm *op, int64_t row, int64_t out_row)
{
    const int64_t k = op->out.k;
    float *x = op->x + row * k;
    float *out = op->out.values + out_row * k;
    if (op->add) {
        add_scaled(x, op->add + row * k, op->add_scale, k);
    }
    if (op->centred) {
        layer_norm(op, x, out);
    } else {
        rms_norm(op, x, out);
    }
    if (op->out.codes) {
        AT_LEVEL(npurt_quantise)(&op->out, out_row, 0, k / BLOCK);
    }
}

typedef f32x16 unit_fn(const npurt_unit *op, f32x16 gate, f32x16 up);

INLINE f32x16 silu_unit(const npurt_unit *op, f32x16 gate, f32x16 up)
{
    (void) op;
    return silu16(gate) * up;
}

INLINE f32x16 gelu_unit(const npurt_unit *op, f32x16 gate, f32x16 up)
{
    (void) op;
    return gelu16(gate) * up;
}

INLINE f32x16 clamped_unit(const npurt_unit *op, f32x16 gate, f32x16 up)
{
    const f32x16 most = op->limit;
    const f32x16 g = gate > most ? most : gate, u = up > most ? most : up; /* keeps NaN */
    const f32x16 shifted = (u < -most ? -most : u) + op->offset;
    return g * sigmoid16(op->alpha * g) * shifted;
}

INLINE void unit_columns(const npurt_unit *op, unit_fn *function, const float *gate,
                         const float *up, float *out, int64_t count)
{
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        store_f32(out + i, function(op, load_f32(gate + i), load_f32(up + i)));
    }
    for (; i < count; i++) {
        out[i] = function(op, (f32x16) (gate[i]), (f32x16) (up[i])).x;
    }
}

INLINE f32x16 gelu_erf_unit(const npurt_unit *op, f32x16 gate, f32x16 up)
{
    (void) op;
    (void) up;
    return gelu_erf16(gate);
}

/* Computes columns [first, first + count) of one row.  `first` is a multiple of 32; with codes, so
 * is `count`. */
void AT_LEVEL(npurt_unit)(const npurt_unit *op, int64_t row, int64_t first, int64_t count)
{
    const int64_t k = op->out.k;
    const int alone = op->activation == NPURT_GELU_ERF;
    const float *gate = op->gate_up + row * (alone ? k : 2 * k) + first;
    const float *up = alone ? gate : gate + k;
    float *out = op->out.values + row * k + first;
    switch (op->activation) {
    case NPURT_SILU:
        unit_columns(op, silu_unit, gate, up, out, count);
        break;
    case NPURT_GELU:
        unit_columns(op, gelu_unit, gate, up, out, count);
        break;
    case NPURT_GELU_ERF:
        unit_columns(op, gelu_erf_unit, gate, up, out, count);
        break;
    default:
        unit_columns(op, clamped_unit, gate, up, out, count);
    }
    if (op->out.codes) {
        AT_LEVEL(npurt_quantise)(&op->out, row, first / BLOCK, count / BLOCK);
    }
}

static void rotate(const npurt_attention *op, float *head, const float *cos, const float *sin)
{
    const int half = op->rotated / 2;
    const int step = op->halves ? 1 : 2, apart = op->halves ? half : 1;
    for (int i = 0; i < half; i++) {
        float *a = head + i * step, *b = a + apart;
        const float x = *a, y = *b;
        *a = x * cos[i] - y * sin[i];
        *b = x * sin[i] + y * cos[i];
    }
}

static void store(void *cache, int64_t at, float value, int bytes)
{
    if (bytes == 4) {
        ((float *) cache)[at] = value;
    } else {
        ((_Float16 *) cache)[at] = (_Float16) value;
    }
}

/* head = head / rms(head) * weight, for one head or for several heads together */
static void norm_head(float *head, int width, const float *weight, float eps)
{
    f32x16 squares = 0.0f;
    for (int d = 0; d < width; d += 16) {
        const f32x16 v = load_f32(head + d);
        squares = fma16(v, v, squares);
    }
    const float inverse = 1.0f / sqrtf(sum16(squares) / (float) width + eps);
    for (int d = 0; d < width; d++) {
        head[d] = head[d] * inverse * weight[d];
    }
}

void AT_LEVEL(npurt_rope)(const npurt_attention *op, const npurt_span *span, int64_t row)
{
    const int64_t position = span->position + row - span->first;
    const int heads = op->heads, kv_heads = op->kv_heads, width = op->width;
    const int step = op->gated ? 2 * width : width;
    float *q = op->qkv + row * op->stride;
    float *k = q + heads * step, *v = k + kv_heads * width;
    const float *cos = op->cos + position * (op->rotated / 2);
    const float *sin = op->sin + position * (op->rotated / 2);
    if (op->whole) {
        norm_head(q, heads * width, op->q_norm, op->eps);
        norm_head(k, kv_heads * width, op->k_norm, op->eps);
    }
    for (int h = 0; h < heads + kv_heads; h++) {
        float *head = h < heads ? q + h * step : k + (h - heads) * width;
        const float *weight = h < heads ? op->q_norm : op->k_norm;
        if (weight && !op->whole) {
            norm_head(head, width, weight, op->eps);
        }
        rotate(op, head, cos, sin);
    }
    const int64_t page = span->pages[position / NPURT_PAGE], inside = position % NPURT_PAGE;
    for (int g = 0; g < kv_heads; g++) {
        const int64_t start = (g * op->pages + page) * NPURT_PAGE * width;
        const int64_t panel = start + inside / 16 * 16 * width, line = start + inside * width;
        for (int d = 0; d < width; d++) {
            store(op->k_cache, panel + d * 16 + inside % 16, k[g * width + d], op->cache_bytes);
            store(op->v_cache, line + d, v[g * width + d], op->cache_bytes);
        }
    }
}

INLINE f32x16 weights_of(const float *x, float most)
{
    return exp16(__builtin_elementwise_max(load_f32(x) - most, (f32x16) (-88.0f)));
}

/* Adds e^(x - most) for all x[0..n) to *sum; none of them is above `most`. */
void AT_LEVEL(npurt_mass)(const float *x, int64_t n, float most, double *sum)
{
    while (n > 0) {
        f32x16 sums = 0.0f;
        for (int i = 0; i < 16 && n >= 16; i++, x += 16, n -= 16) {
            sums += weights_of(x, most);
        }
        if (n < 16) {
            float rest[16];
            for (int i = 0; i < 16; i++) {
                rest[i] = i < n ? x[i] : -INFINITY;
            }
            sums += weights_of(rest, most);
            n = 0;
        }
        *sum += sum16(sums);
    }
}

void AT_LEVEL(npurt_dense_f32)(const uint8_t *, int, const float *, int, int64_t, float *, int64_t);
void AT_LEVEL(npurt_dense_f16)(const uint8_t *, int, const float *, int, int64_t, float *, int64_t);
void AT_LEVEL(npurt_dense_bf16)(const uint8_t *, int, const float *, int, int64_t, float *,
                                int64_t);
#define NPURT_FORMAT(name, ...) npurt_expand_fn AT_LEVEL(npurt_expand_##name);
#include "formats.inc"

const npurt_level AT_LEVEL(npurt_level) = {
#define NPURT_KERNEL(name, parameters) .name = AT_LEVEL(npurt_##name),
#include "ops.inc"
    .row_is_right = AT_LEVEL(npurt_row_is_right),
    .dense = {AT_LEVEL(npurt_dense_f32), AT_LEVEL(npurt_dense_f16), AT_LEVEL(npurt_dense_bf16)},
    .expand =
        {
#define NPURT_FORMAT(name, ...) AT_LEVEL(npurt_expand_##name),
#include "formats.inc"
        },
};
