/* Loads and stores vectors at any address in VTCM and in the heap. */
#include "dsp.h"
#include <hexagon_types.h>

enum { COUNT = 6, BYTES = COUNT * 128 };

/* A hardware loop whose last packet may store. */
__attribute__((noinline)) static void store_all(uint8_t *to, const uint8_t *from)
{
    for (int i = 0; i < COUNT; i++) {
        ((HVX_UVector *) to)[i] = ((const HVX_Vector *) from)[i];
    }
}

static void load_all(uint8_t *to, const uint8_t *from)
{
    for (int i = 0; i < COUNT; i++) {
        ((HVX_Vector *) to)[i] = ((const HVX_UVector *) from)[i];
    }
}

/* The other forms of a store: with increments by a number and by a register, under a condition,
 * below a register, and beside a jump. */
static void store_forms(uint8_t *to, const uint8_t *from)
{
    uint8_t *at = to;
    __asm__ volatile("{ v0 = vmem(%1+#0); m0 = %2 }\n"
                     "{ v1 = vmem(%1+#1); p0 = cmp.eq(r0,r0) }\n"
                     "{ v2 = vmem(%1+#2); r6 = add(%0,#640) }\n"
                     "{ v3 = vmem(%1+#3); r7 = #0 }\n"
                     "{ vmemu(%0++#1) = v0 }\n"
                     "{ vmemu(%0++m0) = v1 }\n"
                     "{ if (p0) vmemu(%0+#0) = v2 }\n"
                     "{ v4 = vmem(%1+#4) }\n"
                     "{ v5 = vmem(%1+#5) }\n"
                     "{ p0 = cmp.eq(r7,#0); if (p0.new) jump:t 1f; vmemu(r6+#-2) = v3 }\n"
                     "{ r7 = memw(r7+#0) }\n"
                     "1: { jump 2f; vmemu(r6+#-1) = v4 }\n"
                     "{ r7 = memw(r7+#0) }\n"
                     "2: { vmemu(r6+#0) = v5 }\n"
                     : "+r"(at)
                     : "r"(from), "r"(128)
                     : "v0", "v1", "v2", "v3", "v4", "v5", "r6", "r7", "p0", "m0", "memory");
}

/* in: 1 for VTCM or 0 for the heap, the offset there, the kind of access.  Return the number of
 * bytes that differ afterwards. */
static int move(uint8_t *memory, const uint32_t *in)
{
    static uint8_t from[BYTES] __attribute__((aligned(128)));
    static uint8_t back[BYTES] __attribute__((aligned(128)));
    uint8_t *there = memory + (-(uintptr_t) memory & 127) + in[1];
    for (uint32_t i = 0; i < BYTES; i++) {
        from[i] = (uint8_t) (i * 7 + i / 128);
        if (in[2] == 1) {
            there[i] = from[i];
        }
    }
    if (in[2] == 0) {
        store_all(there, from);
    } else if (in[2] == 1) {
        load_all(back, there);
    } else {
        store_forms(there, from);
    }
    const uint8_t *got = in[2] == 1 ? back : there;
    int different = 0;
    for (uint32_t i = 0; i < BYTES; i++) {
        different += got[i] != from[i];
    }
    return different;
}

EXPORT int vectors_skel_handle_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments)
{
    static uint8_t heap[BYTES + 512];
    (void) handle;
    if (scalars >> 24 != 2) {
        return scalars >> 24 < 2 ? 0 : UNKNOWN_METHOD;
    }
    const uint32_t *in = arguments[0].buffer.at;
    compute_res_attr_t r;
    compute_resource_attr_init(&r);
    compute_resource_attr_set_vtcm_param_v2(&r, 64 << 10, 0, 0);
    uint32_t id = compute_resource_acquire(&r, 0);
    void *vtcm = NULL;
    compute_resource_attr_get_vtcm_ptr_v2(&r, &vtcm, NULL);
    int different = move(in[0] ? vtcm : heap, in);
    compute_resource_release(id);
    return different;
}
