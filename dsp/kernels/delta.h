/*
 * A gated delta net in integers: for each token and head, with a = e^decay,
 *
 *   d = beta (v - S (a k));  S = a S + d k^T;  out = scale S q
 *
 * From token to token the state has this format:
 *
 *   S[k][v] = integer[k][v] * gain[k] / 2^31 * 2^exponent[v]        |integer| <= 2^30
 *
 * gain is 2^30..2^31 - 1.  A decay multiplies the gain, and shifts the integers only if the gain
 * would leave its range.  Apart from such shifts, only d k^T changes the integers.  A head has one
 * gain, unless it has a decay for each element of k.
 *
 * The rank-1 update of the last token is pending in a state; the next token makes it:
 *
 *   integer[k][v] / 2^shift[v] + k[k] d[v]    rounded down; k, d of 16 bits
 *
 * The result is the integer[k][v] of the formula above.
 *
 * Widths are padded with zeros: B = ceil(width / 32) vectors along v, P = ceil(width / 64) pairs of
 * vectors along k.  A head's state, in vectors:
 *
 *   integer[P][32][B][2], k[P], d[B], shift[B], exponent[B], gain[2 P]
 *
 * where integer[p][j][b] is a pair of vectors: rows k = 64 p + j and 64 p + 32 + j, for v = 32
 * b..32 b + 31.  A word of k has two int16, for these two rows; a word of d has the same int16
 * twice.
 *
 * A row of x holds one token, as float32, in parts that begin at multiples of 128 bytes:
 *
 *   q[k_heads][64 P], k[k_heads][64 P], v[heads][32 B], beta[heads], decay[heads] or [heads][64 P]
 *
 * The padding of a decay repeats one of its elements; otherwise the padding rows would not decay
 * with the others.  A row of y is out[heads][32 B].
 *
 * Bits equal those of tests/hexagon/delta_model.py.
 */
#ifndef NPURT_DELTA_H
#define NPURT_DELTA_H

#include <stddef.h>
#include <stdint.h>

#define NPURT_DELTA_ITEMS 16u /* items (a token of a head) that are prepared together */

typedef struct {
    const char *x; /* [sequences][tokens] rows */
    char *y;       /* likewise */
    size_t x_stride, y_stride;
    uint32_t tokens, sequences, k_heads, heads, width;
    uint32_t share;   /* heads / k_heads */
    uint32_t grouped; /* 1: head h has head h / share of k, 0: h % k_heads */
    uint32_t gates;   /* 1: a decay for each element of k */
    uint32_t scale;   /* bits of a float32 */
} npurt_delta;

/* Return the bytes of one head's state, of a row of x, of a row of y, and of the scratch memory. */
size_t npurt_delta_state_bytes(uint32_t width);
size_t npurt_delta_x_bytes(const npurt_delta *op);
size_t npurt_delta_y_bytes(const npurt_delta *op);
size_t npurt_delta_scratch(void);

/*
 * Run heads first..last-1 of all sequences; head h of sequence n has the number n * heads + h.
 * `state` is the state of head `first`.  Return 0, or 1 if x holds NaN or infinity; state and y are
 * then invalid.
 */
int npurt_delta_run(const npurt_delta *op, uint32_t first, uint32_t last, void *state,
                    void *scratch);

#endif
