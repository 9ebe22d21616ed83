/*
 * The binary interface of libnpurt_cpu; npurt/cpu/kernels/abi.py reads this header.
 *
 * A program is an array of ops.  The threads of a pool run its ops in order; an op begins when the
 * one before is over.  Rows are tokens, and an op computes as many rows as the run has.  The table
 * of a run assigns its rows to sequences, which matters only to ops with states and to attention.
 */
#ifndef NPURT_CPU_H
#define NPURT_CPU_H

#include <stddef.h>
#include <stdint.h>

#define NPURT_API __attribute__((visibility("default")))

/* Limits of the kernels.  npurt_run refuses larger sizes; Python parses this enum. */
enum npurt_limit {
    NPURT_MOST_ROWS = 512,        /* rows of a run */
    NPURT_MOST_COLUMNS = 1 << 24, /* columns of any buffer: products of two sizes fit 64 bits */
    NPURT_MOST_HEAD = 256,        /* width of a head of attention */
    NPURT_MOST_DELTA = 128,       /* width of a head of a delta net */
    NPURT_HEAD_STEP = 16,         /* widths of heads are multiples of this */
    NPURT_MOST_KERNEL_SIZE = 8,   /* kernel size of a convolution */
    NPURT_MOST_EXPERTS = 4096,
    NPURT_MOST_EXACT = 1 << 17, /* columns of an exact product: its sums fit 32 bits */
    NPURT_PAGE = 64,            /* positions in a page of keys and values */
};

enum { NPURT_REMAINDER_STEPS = 255 }; /* remainder units per unit of a code */

/* Errors that npurt_run returns. */
enum npurt_error { NPURT_NO_MEMORY = -1, NPURT_REFUSED = -2 };

/*
 * The scale and the sums of a block of 32 quantised activations.  With remainders, "code" below
 * means 255 * code + remainder.
 */
typedef struct {
    float scale;
    float sum;     /* scale times the sum of the 32 codes */
    int32_t minus; /* minus the sum of the 32 codes */
    int32_t reserved;
    float sums[2];      /* like `sum`, for each half of 16 codes */
    int32_t minuses[2]; /* like `minus`, for each half */
} npurt_block;

/* One input of a matmul: float32 rows, and the codes that `quantise` computes from them. */
typedef struct {
    float *values;       /* [rows][k] */
    int8_t *codes;       /* [rows][k]; NULL if no product needs codes */
    npurt_block *blocks; /* [rows][k/32] */
    int8_t *remainders;  /* [rows][k], codes of the rounding errors of `codes`; or NULL */
    int64_t k;
} npurt_input;

/* One packed weight. */
typedef struct {
    uint8_t *image;
    int64_t n, k;
    int32_t type; /* GGUF number */
    int32_t reserved;
    const float *bias;     /* [n], of a stack [matrices][n]; or NULL */
    int64_t column;        /* column of y for this weight's first output */
    const double *check_r; /* [n] probe vector r; NULL before the first verification */
    const double *check_s; /* [k] W^T r */
    double check_bound;    /* bound of a row's error, per unit of the norm of its input */
    double check_floor;    /* constant part of the bound of a row's error */
} npurt_weight;

/* Consecutive rows of a matmul's input that are multiplied by one matrix of a stack. */
typedef struct {
    int32_t matrix;
    int32_t rows; /* 0: this group and all later ones are unused */
    int64_t first;
} npurt_group;

enum npurt_kind {
    NPURT_NORM = 1,          /* x += add_scale * add; out = norm(x) * weight, and out's codes */
    NPURT_QUANT,             /* compute out's codes from its values */
    NPURT_MATMUL,            /* y[:, column..] = input . weight^T + bias, for up to 3 weights */
    NPURT_ROPE,              /* rotate q and k of a qkv buffer; write k and v to the caches */
    NPURT_ATTEND,            /* causal grouped-query attention over the caches */
    NPURT_UNIT,              /* out = activation(gate) * up, and out's codes */
    NPURT_PACK,              /* GGUF rows -> image */
    NPURT_TRANSPOSED_MATVEC, /* s = W^T r of an image, for verification */
    NPURT_PACK_I8,           /* int8 [k][n] -> image of exact integer products */
    NPURT_I8,                /* y = x . w, int8 x int8 -> int32, exact */
    NPURT_CONV,         /* results of the projections -> q, k, v, decay and beta of a delta net */
    NPURT_DELTA,        /* gated delta net: state = decay * state + beta * (v - state . k) k^T */
    NPURT_GATE,         /* out = norm of each head * silu(gate), and out's codes */
    NPURT_ROUTE,        /* choose the experts of each row; list the rows of each expert */
    NPURT_GATHER,       /* copy rows of an input, in the order of their experts */
    NPURT_WEIGHTED_SUM, /* add up the results of each row's experts, times their weights */
    NPURT_SUM,          /* x += scale * add, and x's codes */
    NPURT_CAP,          /* x = cap * tanh(factor * x / cap) */
    NPURT_SHORTCONV,    /* out = after * conv(before * value) */
    NPURT_ENCODE,       /* bidirectional attention over the rows of a sequence; no cache */
};

typedef struct {
    float *x;            /* [rows][k], overwritten by the sum unless add is NULL */
    const float *add;    /* [rows][k] or NULL */
    const float *weight; /* [k] */
    const float *bias;   /* [k] or NULL; LayerNorm only */
    npurt_input out;
    float add_scale;
    float eps;
    int32_t gathers; /* 1: row i of out is the norm of the i-th selected row of x */
    int32_t centred; /* 1: LayerNorm, which subtracts the mean first; 0: RMSNorm */
} npurt_norm;

typedef struct {
    npurt_input out;
} npurt_quant;

typedef struct {
    npurt_input in;
    npurt_weight w[3]; /* with groups, each weight and its check_s is a stack of `matrices` */
    float *y;          /* [rows][stride] */
    int64_t stride;
    int32_t weights;
    int32_t verify;            /* verify this run */
    const npurt_group *groups; /* NULL: each weight is one matrix, for all rows */
    int64_t matrices;
} npurt_matmul;

/* A row of qkv has the query heads, then the key heads, then the value heads. */
typedef struct {
    float *qkv;       /* [rows][stride] */
    const float *cos; /* [positions][rotated/2] */
    const float *sin;
    const float *q_norm; /* [width] or NULL: weight of the RMS norm before the rotation */
    const float *k_norm;
    const float *sinks;       /* [heads] or NULL: one extra logit per head, for a value of zero */
    const float *temperature; /* [positions] or NULL: factors of the queries */
    int64_t stride;
    void *k_cache;     /* [kv_heads][pages][NPURT_PAGE/16][width][16] f16 or f32 */
    void *v_cache;     /* [kv_heads][pages][NPURT_PAGE][width] */
    int64_t pages;     /* pages of the caches */
    int64_t positions; /* length of the tables: positions of rows are smaller */
    int64_t window;    /* positions that a row attends to, including itself; 0: no limit */
    int32_t heads, kv_heads, width, rotated;
    int32_t halves;      /* 0 rotates pairs (2i, 2i+1); 1 rotates pairs (i, i + rotated/2) */
    int32_t cache_bytes; /* 2 or 4 bytes per element */
    int32_t gated;       /* 1: a gate follows each query head, and out *= sigmoid(gate) */
    int32_t whole;       /* 1: norms are over all heads together, q_norm is [heads * width] */
    float *out;          /* ATTEND and ENCODE: [rows][heads * width] */
    float scale, eps;
    float softcap; /* scores become softcap * tanh(score / softcap); 0 disables the cap */
} npurt_attention;

enum npurt_activation {
    NPURT_SILU,     /* silu(gate) * up */
    NPURT_GELU,     /* gelu(gate) * up, with the tanh approximation */
    NPURT_CLAMPED,  /* gate * sigmoid(alpha * gate) * (up + offset), gate and up clamped first */
    NPURT_GELU_ERF, /* gelu(gate) with erf, without up: rows of gate_up have k columns */
};

typedef struct {
    const float *gate_up; /* [rows][2 * k]: gate, then up */
    npurt_input out;
    int32_t activation;
    float limit; /* CLAMPED: gate <= limit, -limit <= up <= limit */
    float alpha, offset;
} npurt_unit;

typedef struct {
    float *x;         /* [rows][stride], k columns of each row; overwritten by the sum */
    const float *add; /* [rows][k] or NULL */
    npurt_input out;  /* its values are x; it has codes only if `stride` is k */
    int64_t stride;   /* elements from one row of x to the next */
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
    int64_t row_bytes; /* bytes of a row in the file */
    int32_t type;
} npurt_packing;

typedef struct {
    npurt_weight w;
    double *s;     /* [k] */
    double *norms; /* [panels] sum of (r * |row|)^2 */
} npurt_transposed;

/* Exact integer products: x [rows][k], k a multiple of 4 (zeros past the end). */
typedef struct {
    const int8_t *b; /* PACK_I8: [real_k][n] with strides in bytes */
    int64_t stride_k, stride_n, real_k;
    uint8_t *image; /* [ceil(n/16)][k/4][16][4] of b + 128 */
    const int8_t *x;
    const int32_t *minus; /* [rows] -128 times the sum of a row of x */
    int32_t *y;           /* [rows][stride], stride >= n */
    int64_t n, k, stride;
} npurt_integers;

/*
 * The short convolution before a delta net.  It stores its inputs in `kept`: a row has the channels
 * of a row of `in`, then the row of `gates`.  A slot has the last `capacity` tokens of a sequence,
 * token t in row t % capacity.
 */
typedef struct {
    const float *in;     /* [rows][stride]: k_heads of q, k_heads of k, heads of v */
    const float *gates;  /* [rows][2 * heads]: beta, then decay, before activation functions */
    const float *weight; /* [kernel_size][channels], the last row for the current token */
    const float *rate;   /* [heads]: log decay = rate * softplus(decay + bias) */
    const float *bias;   /* [heads] */
    float *kept;         /* [slots][capacity][channels + 2 * heads] */
    float *out;          /* [rows][channels]: q and k normalised to length 1, then v */
    float *out_gates;    /* [rows][2 * heads]: beta, then log decay */
    int64_t stride, capacity, slots;
    int32_t heads, k_heads, width, kernel_size;
    int32_t replay; /* 1: reads inputs from `kept`, not from `in` and `gates` */
    float eps;
} npurt_conv;

/*
 * The gated short convolution: out = after * conv(before * value).  A slot of `kept` has the last
 * `capacity` products before * value of a sequence, the product of token t in row t % capacity.
 */
typedef struct {
    const float *in;     /* [rows][3 * k]: before, after, value */
    const float *weight; /* [kernel_size][k], the last row for the current token */
    float *kept;         /* [slots][capacity][k] */
    npurt_input out;
    int64_t capacity, slots;
    int32_t kernel_size;
} npurt_shortconv;

/* Strides in floats: from one token, head or sequence to the next. */
typedef struct {
    int64_t token, head, sequence;
} npurt_strides;

typedef struct {
    const float *q, *k, *v, *decay, *beta;
    float *out;
    float *state; /* [slots][copies][sequences][heads][width of v][width of k] */
    /* [slots][3]: the copy to start from; the copy to save the state to, or -1; the number of
     * tokens to process before saving.  NULL: starts from copy 0, saves none. */
    const int32_t *control;
    int64_t slots, slot_stride; /* slot_stride in floats */
    npurt_strides q_at, k_at, v_at, decay_at, beta_at, out_at;
    int32_t sequences, heads, k_heads, width;
    int32_t gates;   /* logarithms of decay per head: 1, or width (one per element of k) */
    int32_t grouped; /* k head of v head h: 1: h / (heads / k_heads); 0: h % k_heads */
    float scale;     /* factor of q */
} npurt_delta;

typedef struct {
    const float *x;      /* [rows][heads * width] */
    const float *gate;   /* [rows][stride], the first heads * width columns of each row */
    const float *weight; /* [width] */
    npurt_input out;
    int64_t stride, width;
    float eps;
} npurt_gate;

typedef struct {
    const float *scores;      /* [rows][stride], the first `experts` columns of each row */
    float *expert_weights;    /* [rows][top_k] */
    int64_t *scatter_indices; /* [rows][top_k]: the positions of a row's copies */
    int64_t *gather_indices;  /* [rows * top_k]: the row of each copy */
    npurt_group *groups;      /* [min(experts, rows * top_k)] */
    int64_t stride;
    int32_t experts, top_k;
    int32_t normed;      /* 1: expert weights are divided by their sum */
    int32_t over_chosen; /* 1: the softmax is over the chosen experts; 0: over all */
    float scale;         /* factor of expert weights */
} npurt_route;

typedef struct {
    npurt_input in, out; /* out has top_k rows per row of in */
    const int64_t *gather_indices;
} npurt_gather;

typedef struct {
    const float *y;              /* [rows * top_k][k] */
    const float *expert_weights; /* [rows][top_k] */
    const int64_t *scatter_indices;
    const float *shared; /* [rows][k], results of the shared expert; or NULL */
    const float *gate;   /* [rows][gate_stride], one value per row; NULL: sigmoid(gate) is 1 */
    float *out;          /* [rows][k] */
    int64_t k, gate_stride;
    int32_t top_k;
} npurt_weighted_sum;

typedef struct {
    int32_t kind;
    int32_t isa;            /* index of the instruction set to use */
    int32_t selects;        /* 1: the op computes as many rows as the run selects */
    int32_t row_multiplier; /* rows of the op per row of the run; 0 means 1 */
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
    uint64_t calls;       /* number of runs */
    uint64_t rows;        /* rows computed in all runs */
    uint64_t nanoseconds; /* time in all runs */
    uint64_t checks;      /* number of verified results */
    uint64_t matrices;    /* matrices read of each weight in all runs */
    int64_t checked;      /* sizes were checked for runs of fewer rows than this; 0 at first */
} npurt_op;

/* Consecutive rows of a run that are consecutive positions of one sequence. */
typedef struct {
    int64_t first, rows;  /* first row in the run, number of rows */
    int64_t position;     /* position of the first row */
    int64_t slot;         /* index of the sequence's recurrent states */
    const int32_t *pages; /* [listed] pages of the sequence's keys and values, or NULL */
    int64_t listed;
} npurt_span;

/*
 * The rows of one run.  The spans are in order and cover all rows.  Their slots are distinct, and
 * no other span lists a page that a span writes to.
 */
typedef struct {
    int64_t rows, count, selects; /* numbers of rows, spans and selected rows */
    const npurt_span *spans;
    const int32_t *selected; /* rows whose logits are computed, ascending */
} npurt_table;

typedef struct npurt_pool npurt_pool;

/* Starts threads - 1 workers on `count` given CPUs, or on any if it is 0.  NULL: no memory. */
NPURT_API npurt_pool *npurt_pool_new(int threads, const int32_t *cpus, int count);
NPURT_API void npurt_pool_free(npurt_pool *pool);

/* Waits until no worker is inside a run; then memory of earlier runs may be freed. */
NPURT_API void npurt_pool_settle(npurt_pool *pool);

/*
 * Runs ops[0..count) on the rows of a table.  Returns `count`, or the index of the first op whose
 * result failed verification (later ops have not run), or an npurt_error (no op has run).  Only one
 * thread may call this at a time.
 */
NPURT_API int npurt_run(npurt_pool *pool, npurt_op *ops, int count, const npurt_table *table);

/* Returns the reason why the last run was refused. */
NPURT_API const char *npurt_pool_why(const npurt_pool *pool);

/* Number and names of the compiled instruction sets, fastest first; 1 if this CPU supports one. */
NPURT_API int npurt_isa_count(void);
NPURT_API const char *npurt_isa_name(int isa);
NPURT_API int npurt_isa_works(int isa);

/* Returns the bytes of the image of an [n, k] weight; 0 if the GGUF type is unknown, or if k is not
 * a multiple of the type's block. */
NPURT_API int64_t npurt_image_bytes(int type, int64_t n, int64_t k);

/*
 * Writes rows index[0..count) of an [n, k] matrix of blocks of a GGUF type to out [count][k], as
 * floats.  Returns 0; or NPURT_REFUSED, with nothing written, if the type has no blocks, k is not a
 * multiple of the block, or an index is out of range.
 */
NPURT_API int npurt_take(int type, const uint8_t *blocks, int64_t n, int64_t k, int64_t row_bytes,
                         const int32_t *index, int64_t count, float *out);

/*
 * Writes the indices of the k largest numbers of x[0..n) to `best`, largest first; equal numbers
 * are in order of their indices.  NaN and -inf are left out.  Returns the number of indices.
 */
NPURT_API int64_t npurt_best(const float *x, int64_t n, int64_t k, int32_t *best);

/*
 * A gated delta net whose state is integers, for the tokens of one sequence.  Arrays are contiguous
 * and finite; width is at most NPURT_MOST_DELTA and k_heads divides heads.
 */
typedef struct {
    const float *q, *k; /* [tokens][k_heads][width] */
    const float *v;     /* [tokens][heads][width] */
    const float *decay; /* [tokens][heads][decays], logarithms */
    const float *beta;  /* [tokens][heads] */
    float *out;         /* [tokens][heads][width] */
    int32_t *state;     /* [heads][width][width + 2], npurt.device.delta.STATE_INTEGERS */
    int64_t tokens, heads, k_heads, width;
    int64_t decays;  /* logarithms of decay per head: 1, or width */
    int64_t grouped; /* k head of head h: 1: h / (heads / k_heads); 0: h % k_heads */
    float scale;     /* of out */
} npurt_integer_delta;

/* Writes out and advances the state, with the bits of dsp/kernels/delta.h. */
NPURT_API void npurt_delta_integers(const npurt_integer_delta *net);

/* Indices first..end-1. */
typedef struct {
    int64_t first, end;
} npurt_range;

/* Settings of a sampler: top-k, top-p, min-p, temperature, in this order. */
typedef struct {
    const npurt_range *allowed; /* the tokens that may be drawn: at least one range, ascending */
    int64_t allowed_count;
    int64_t top_k;      /* 0: keeps all */
    double top_p;       /* 1: keeps all */
    double log_min_p;   /* -inf: keeps all */
    double temperature; /* above 0 */
    int32_t isa;
    int32_t reserved;
} npurt_sampling;

/*
 * Draws a token from the logits x[0..n) with a random number in [0, 1).  Returns its id,
 * which is equal to that of the samplers in npurt/llm/decode/samplers.  Returns NPURT_REFUSED if
 * the caller must use those samplers: a logit is NaN or +inf, a range is outside of x, too many
 * candidates remain, or the result could depend on the rounding of sums of probabilities.
 */
NPURT_API int64_t npurt_sample(const npurt_sampling *s, const float *x, int64_t n, double random);

/* Returns sizeof(npurt_op) in this library; Python compares it with cffi's value. */
NPURT_API int64_t npurt_sizeof_op(void);

#endif
