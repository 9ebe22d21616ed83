/*
 * The methods of vectors.idl.  npurt's IDL compiler generates their declarations (vectors.h) and
 * the code that calls them.
 */
#include "vectors.h"
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>

enum { PER_VECTOR = 64, BAD_PARAMETER = 0x0e };

int vectors_open(const char *uri, remote_handle64 *h)
{
    (void) uri;
    *h = 1; /* a session without state: any number but 0 */
    return 0;
}

int vectors_close(remote_handle64 h)
{
    (void) h;
    return 0;
}

/* FastRPC does not align buffers, so vectors are loaded and stored unaligned. */
int vectors_add(remote_handle64 h, const int16_t *a, int aLen, const int16_t *b, int bLen,
                int16_t *sum, int sumLen)
{
    (void) h;
    if (aLen != bLen || aLen != sumLen) {
        return BAD_PARAMETER;
    }
    int i = 0;
    for (; i + PER_VECTOR <= aLen; i += PER_VECTOR) {
        HVX_Vector x = *(const HVX_UVector *) (a + i), y = *(const HVX_UVector *) (b + i);
        *(HVX_UVector *) (sum + i) = Q6_Vh_vadd_VhVh_sat(x, y);
    }
    for (; i < aLen; i++) {
        int both = a[i] + b[i];
        sum[i] = (int16_t) (both > INT16_MAX ? INT16_MAX : both < INT16_MIN ? INT16_MIN : both);
    }
    return 0;
}
