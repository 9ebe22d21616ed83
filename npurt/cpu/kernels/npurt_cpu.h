/*
 * The binary interface of libnpurt_cpu: what npurt/cpu/kernels/abi.py declares, struct for struct.
 *
 * A program is an array of ops that the threads of a pool walk together; every op but the last waits
 * for the one before.  Rows are tokens: an op works on as many of them as a run has.  A run's table
 * says which sequence each row belongs to; few kinds of ops ask.
 */
#ifndef NPURT_CPU_H
#define NPURT_CPU_H

#include <stddef.h>
#include <stdint.h>

#define NPURT_API __attribute__((visibility("default")))

/* Sizes that the kernels rely on.  npurt_run refuses what goes beyond them; Python reads them here. */
enum npurt_limit {
    NPURT_MOST_ROWS = 512,        /* of a run */
    NPURT_MOST_COLUMNS = 1 << 24, /* of anything: what is computed of two such fits 64 bits */
    NPURT_MOST_HEAD = 256,        /* width of a head of attention */
    NPURT_MOST_DELTA = 128,       /* width of a head of a delta net */
    NPURT_HEAD_STEP = 16,         /* that both are multiples of */
    NPURT_MOST_KERNEL_SIZE = 8,   /* of a convolution */
    NPURT_MOST_EXPERTS = 4096,
    NPURT_MOST_EXACT = 1 << 17, /* columns of an exact product: its sums fit 32 bits */
    NPURT_PAGE = 64,            /* positions of a page of keys and values */
};

enum { NPURT_REMAINDER_STEPS = 255 }; /* of a remainder in one step of a code */

/* What npurt_run returns besides how many ops were done. */
enum npurt_error { NPURT_NO_MEMORY = -1, NPURT_REFUSED = -2 };

/*
 * What the kernels need of 32 quantised activations besides their codes.  With remainders, "code"
 * below means 255 * code + remainder.
 */
typedef struct {
    float scale;
    float sum;     /* scale times the sum of the 32 codes */
    int32_t minus; /* minus the sum of the 32 codes */
    int32_t reserved;
    float sums[2]; /* as above, of 16 codes each */
    int32_t minuses[2];
} npurt_block;

/* One input of a matmul: float32 rows, and what `quantise` makes of them. */
typedef struct {
    float *values;       /* [rows][k] */
    int8_t *codes;       /* [rows][k]; NULL when no consumer multiplies integers */
    npurt_block *blocks; /* [rows][k/32] */
    int8_t *remainders;  /* [rows][k] of what the codes leave over; or NULL */
    int64_t k;
} npurt_input;

/* One packed weight. */
typedef struct {
    uint8_t *image;
    int64_t n, k;
    int32_t type; /* GGUF number */
    int32_t reserved;
    const float *bias;     /* [n], of a stack [matrices][n]; or NULL */
    int64_t column;        /* of y where this weight's first output goes */
    const double *check_r; /* [n] probe vector r, or NULL when never checked */
    const double *check_s; /* [k] W^T r */
    double check_bound;    /* of the error of a row, per unit of the norm of its input */
    double check_floor;    /* that is added to it */
} npurt_weight;

/* Consecutive rows of a matmul's input that go to one matrix of a stack. */
typedef struct {
    int32_t matrix;
    int32_t rows; /* none: there are no more groups */
    int64_t first;
} npurt_group;

enum npurt_kind {
    NPURT_NORM = 1,          /* x += add_scale * add; out = norm(x) * weight, quantised too */
    NPURT_QUANT,             /* fill out's codes from its values */
    NPURT_MATMUL,            /* y[:, column..] = input . weight^T + bias, for up to 3 weights */
    NPURT_ROPE,              /* rotate q and k of a qkv buffer; append k and v to the cache */
    NPURT_ATTEND,            /* causal grouped-query attention over the cache */
    NPURT_UNIT,              /* out = activation(gate) * up, quantised too */
    NPURT_PACK,              /* GGUF rows -> image */
    NPURT_TRANSPOSED_MATVEC, /* s = W^T r of an image, for verification */
    NPURT_PACK_I8,           /* int8 [k][n] -> image of exact integer products */
    NPURT_I8,                /* y = x . w, int8 x int8 -> int32, exact */
    NPURT_CONV,         /* what the projections gave -> q, k, v, decay and beta of a delta net */
    NPURT_DELTA,        /* gated delta net: state = decay * state + beta * (v - state . k) k^T */
    NPURT_GATE,         /* out = norm of each head * silu(gate), quantised too */
    NPURT_ROUTE,        /* the experts of each row, and the rows of each expert */
    NPURT_GATHER,       /* rows of an input, in the order of their experts */
    NPURT_WEIGHTED_SUM, /* the weighted sum of the results of a row's experts */
    NPURT_SUM,          /* x += scale * add, quantised too */
    NPURT_CAP,          /* x = cap * tanh(factor * x / cap) */
    NPURT_SHORTCONV,    /* a short convolution between two gates */
    NPURT_ENCODE,       /* attention of all rows of a sequence to all of them; no cache */
};

typedef struct {
    float *x;            /* [rows][k], updated when add is given */
    const float *add;    /* [rows][k] or NULL */
    const float *weight; /* [k] */
    const float *bias;   /* [k] or NULL; LayerNorm only */
    npurt_input out;
    float add_scale;
    float eps;
    int32_t gathers; /* 1: row i of out is made of the i-th selected row of x */
    int32_t centred; /* 1: the mean is taken off before: LayerNorm; 0: RMSNorm */
} npurt_norm;

typedef struct {
    npurt_input out;
} npurt_quant;

typedef struct {
    npurt_input in;
    npurt_weight w[3]; /* each a stack of `matrices` where there are groups; check_s too */
    float *y;          /* [rows][stride] */
    int64_t stride;
    int32_t weights;
    int32_t verify;            /* verify this run */
    const npurt_group *groups; /* NULL: all rows times the only matrix */
    int64_t matrices;
} npurt_matmul;

/* A row of qkv is the query heads, the key heads, the value heads. */
typedef struct {
    float *qkv;       /* [rows][stride] */
    const float *cos; /* [positions][rotated/2] */
    const float *sin;
    const float *q_norm; /* [width] or NULL: heads are normed before they rotate */
    const float *k_norm;
    const float *sinks; /* [heads] or NULL: one more logit of a head, whose value is nothing */
    const float *temperature; /* [positions] or NULL: q is multiplied by it */
    int64_t stride;
    void *k_cache;     /* [kv_heads][pages][NPURT_PAGE/16][width][16] f16 or f32 */
    void *v_cache;     /* [kv_heads][pages][NPURT_PAGE][width] */
    int64_t pages;     /* of the caches */
    int64_t positions; /* of the tables: no row may have a later one */
    int64_t window;    /* positions that a row sees, its own included; 0: all */
    int32_t heads, kv_heads, width, rotated;
    int32_t halves;      /* 0: pairs (2i, 2i+1); 1: pairs (i, i + rotated/2) */
    int32_t cache_bytes; /* 2 or 4 an element */
    int32_t gated;       /* a gate follows each query head: out *= sigmoid(gate) */
    int32_t whole;       /* norms are over all heads together: q_norm [heads * width] */
    float *out;          /* attention only: [rows][heads * width] */
    float scale, eps;
    float softcap; /* scores become softcap * tanh(score / softcap); 0: they stay */
} npurt_attention;

enum npurt_activation {
    NPURT_SILU,     /* silu(gate) * up */
    NPURT_GELU,     /* gelu(gate) * up, by tanh */
    NPURT_CLAMPED,  /* gate * sigmoid(alpha * gate) * (up + offset), both clamped before */
    NPURT_GELU_ERF, /* gelu(gate) by erf; there is no up: rows of gate_up have k columns */
};

typedef struct {
    const float *gate_up; /* [rows][2 * k]: gate, then up */
    npurt_input out;
    int32_t activation;
    float limit; /* the gate is clamped from above, up from both sides */
    float alpha, offset;
} npurt_unit;

typedef struct {
    float *x;         /* [rows][k] at `stride`, updated when add is given */
    const float *add; /* [rows][k] or NULL */
    npurt_input out;  /* its values are x; it has codes only where `stride` is k */
    int64_t stride;   /* from one row of x to the next, in elements */
    float scale;
} npurt_sum;

typedef struct {
    float *x; /* [rows][k] */
    int64_t k;
    float factor, cap; /* cap 0: x *= factor */
} npurt_cap;

typedef struct {
    const uint8_t *blocks; /* [n][row_bytes] of the GGUF type */
    uint8_t *image;
    int64_t n, k;
    int64_t row_bytes; /* what k columns of a row take in the file */
    int32_t type;
} npurt_packing;

typedef struct {
    npurt_weight w;
    double *s;     /* [k] */
    double *norms; /* [panels] sum of (r * |row|)^2 */
} npurt_transposed;

/* Exact integer products: x [rows][k], k a multiple of 4 (zeros past the end). */
typedef struct {
    const int8_t *b; /* packing: [real_k][n] with strides in bytes */
    int64_t stride_k, stride_n, real_k;
    uint8_t *image; /* [ceil(n/16)][k/4][16][4] of b + 128 */
    const int8_t *x;
    const int32_t *minus; /* [rows] -128 times the sum of a row of x */
    int32_t *y;           /* [rows][stride], stride >= n */
    int64_t n, k, stride;
} npurt_integers;

/*
 * The short convolution before a delta net.  A row of `kept` is the row of `in` up to v, then the row
 * of `gates`; a sequence has its last `capacity` tokens in its slot, token t in row t % capacity.
 */
typedef struct {
    const float *in;     /* [rows][stride]: q of k_heads, k of k_heads, v of heads */
    const float *gates;  /* [rows][2 * heads]: beta, then decay, before their functions */
    const float *weight; /* [kernel_size][channels], the last for the token itself */
    const float *rate;   /* [heads]: log decay = rate * softplus(decay + bias) */
    const float *bias;   /* [heads] */
    float *kept;         /* [slots][capacity][channels + 2 * heads] */
    float *out;          /* [rows][channels]: q and k of length 1, v */
    float *out_gates;    /* [rows][2 * heads]: beta, log decay */
    int64_t stride, capacity, slots;
    int32_t heads, k_heads, width, kernel_size;
    int32_t replay; /* 1: rows come from kept */
    float eps;
} npurt_conv;

/*
 * The gated short convolution: out = after * conv(before * value).  A sequence has its last
 * `capacity` products of before and value in its slot, that of token t in row t % capacity.
 */
typedef struct {
    const float *in;     /* [rows][3 * k]: before, after, value */
    const float *weight; /* [kernel_size][k], the last for the token itself */
    float *kept;         /* [slots][capacity][k] */
    npurt_input out;
    int64_t capacity, slots;
    int32_t kernel_size;
} npurt_shortconv;

/* Floats from one token, head and sequence to the next. */
typedef struct {
    int64_t token, head, sequence;
} npurt_strides;

typedef struct {
    const float *q, *k, *v, *decay, *beta;
    float *out;
    float *state; /* [slots][copies][sequences][heads][width of v][width of k] */
    /* [slots] of {copy to start from, copy to make or -1, tokens before that}; NULL: from 0, none */
    const int32_t *control;
    int64_t slots, slot_stride; /* the latter in floats */
    npurt_strides q_at, k_at, v_at, decay_at, beta_at, out_at;
    int32_t sequences, heads, k_heads, width;
    int32_t gates;   /* logarithms of decay a head: 1, or width, one for each element of k */
    int32_t grouped; /* v head h has k head h / (heads / k_heads), not h % k_heads */
    float scale;     /* of q */
} npurt_delta;

typedef struct {
    const float *x;      /* [rows][heads * width] */
    const float *gate;   /* [rows][stride], its first heads * width */
    const float *weight; /* [width] */
    npurt_input out;
    int64_t stride, width;
    float eps;
} npurt_gate;

typedef struct {
    const float *scores;      /* [rows][stride], its first `experts` */
    float *expert_weights;    /* [rows][top_k] */
    int64_t *scatter_indices; /* [rows][top_k]: the positions of a row's copies */
    int64_t *gather_indices;  /* [rows * top_k]: the row of each copy */
    npurt_group *groups;      /* [the lesser of experts and rows * top_k] */
    int64_t stride;
    int32_t experts, top_k;
    int32_t normed;      /* expert weights add up to 1, before scale */
    int32_t over_chosen; /* the softmax is over the chosen experts, not over all */
    float scale;         /* of expert weights */
} npurt_route;

typedef struct {
    npurt_input in, out; /* out has top_k rows for each of in */
    const int64_t *gather_indices;
} npurt_gather;

typedef struct {
    const float *y;              /* [rows * top_k][k] */
    const float *expert_weights; /* [rows][top_k] */
    const int64_t *scatter_indices;
    const float *shared; /* [rows][k] of the shared expert, or NULL */
    const float *gate;   /* [rows * gate_stride], one a row; NULL: 1 */
    float *out;          /* [rows][k] */
    int64_t k, gate_stride;
    int32_t top_k;
} npurt_weighted_sum;

typedef struct {
    int32_t kind;
    int32_t isa;            /* index of the instruction set to use */
    int32_t selects;        /* 1: the op works on as many rows as the run selects */
    int32_t row_multiplier; /* the op has so many times the rows of the run; 0 is 1 */
    union {
        npurt_norm norm;
        npurt_quant quant;
        npurt_matmul matmul;
        npurt_attention attention;
        npurt_unit unit;
        npurt_packing packing;
        npurt_transposed transposed;
        npurt_integers integers;
        npurt_conv conv;
        npurt_delta delta;
        npurt_gate gate;
        npurt_route route;
        npurt_gather gather;
        npurt_weighted_sum weighted_sum;
        npurt_sum sum;
        npurt_cap cap;
        npurt_shortconv shortconv;
    } u;
    uint64_t calls; /* runs so far */
    uint64_t rows;  /* rows so far */
    uint64_t nanoseconds;
    uint64_t checks;   /* results verified so far */
    uint64_t matrices; /* multiplied so far, of each weight */
    int64_t checked;   /* runs of fewer rows than this need no check; 0 at first */
} npurt_op;

/* Consecutive rows of a run that are consecutive positions of one sequence. */
typedef struct {
    int64_t first, rows;  /* of the run */
    int64_t position;     /* of the first */
    int64_t slot;         /* where the sequence has its recurrent states */
    const int32_t *pages; /* [listed] the pages of its keys and values; NULL: none */
    int64_t listed;
} npurt_span;

/*
 * The rows of one run.  Spans follow each other and have all rows; no two have one slot, and what a
 * span writes to keys and values is in no page of another.
 */
typedef struct {
    int64_t rows, count, selects; /* of spans, of selected rows */
    const npurt_span *spans;
    const int32_t *selected; /* ascending: rows whose logits are wanted */
} npurt_table;

typedef struct npurt_pool npurt_pool;

/* Starts threads-1 workers that may run on the `count` given cpus (0: any); NULL: no memory. */
NPURT_API npurt_pool *npurt_pool_new(int threads, const int32_t *cpus, int count);
NPURT_API void npurt_pool_free(npurt_pool *pool);

/* Waits until no worker is inside a run any more: its memory may then be freed. */
NPURT_API void npurt_pool_settle(npurt_pool *pool);

/*
 * Runs ops[0..count) on the rows of a table.  Returns count; or the index of the first op whose
 * result did not verify, nothing after it having run; or an npurt_error, nothing having run.  One
 * run at a time.
 */
NPURT_API int npurt_run(npurt_pool *pool, npurt_op *ops, int count, const npurt_table *table);

/* Why the last run was refused. */
NPURT_API const char *npurt_pool_why(const npurt_pool *pool);

/* Names of the instruction sets compiled in, best first, and whether this machine runs them. */
NPURT_API int npurt_isa_count(void);
NPURT_API const char *npurt_isa_name(int isa);
NPURT_API int npurt_isa_works(int isa);

/* Bytes of the image of an [n, k] weight of this GGUF type; 0: no such type or k does not divide. */
NPURT_API int64_t npurt_image_bytes(int type, int64_t n, int64_t k);

/*
 * Writes rows index[0..count) of an [n, k] matrix of blocks of this GGUF type to out [count][k], in
 * floats.  Returns 0; or NPURT_REFUSED, with nothing written, where the type has no blocks, k does
 * not divide, or there is no such row.
 */
NPURT_API int npurt_take(int type, const uint8_t *blocks, int64_t n, int64_t k, int64_t row_bytes,
                         const int32_t *index, int64_t count, float *out);

/*
 * Writes where the k largest of x[0..n) are, the largest and first of equals first.  Neither NaN nor
 * -inf is among them.  Returns how many there are.
 */
NPURT_API int64_t npurt_best(const float *x, int64_t n, int64_t k, int32_t *best);

/* Bytes of this library's structs, to be compared with what cffi computes. */
NPURT_API int64_t npurt_sizeof_op(void);

#endif
