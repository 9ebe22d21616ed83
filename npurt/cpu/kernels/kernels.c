/*
 * The table of instruction sets with their kernels, and the detection of this CPU's features.
 *
 * Feature bits: Intel SDM vol. 2A CPUID, vol. 1 ch. 18 (AMX permission, Linux arch_prctl);
 * Arm: Linux Documentation/arch/arm64/elf_hwcaps.rst.
 */
#define _GNU_SOURCE
#include "kernels.h"

const int8_t npurt_books[3][16] = {
    {0},
    /* kvalues_iq4nl and kvalues_mxfp4 of ggml/src/ggml-common.h */
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
};

static const npurt_format formats[] = {
#define NPURT_FORMAT(name, number, bits, book, shift, group, scale, offset)                        \
    {number, bits, book, shift, group, scale, offset},
#include "formats.inc"
};

const npurt_format *npurt_find_format(int number)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (formats[i].number == number) {
            return formats + i;
        }
    }
    return NULL;
}

int64_t npurt_image_bytes(int type, int64_t n, int64_t k)
{
    const int64_t panels = (n + ROWS - 1) / ROWS;
    if (type == 0 || type == 1 || type == 30) {
        return panels * ROWS * k * (type == 0 ? 4 : 2);
    }
    const npurt_format *f = npurt_find_format(type);
    if (!f || k % (f->scale == SUPER ? RECORD : BLOCK)) {
        return 0;
    }
    return panels * (int64_t) panel_bytes(f, k);
}

static int always(void)
{
    return 1;
}

extern const npurt_level npurt_level__base;
extern npurt_gemm_fn npurt_gemm__scalar;
extern npurt_i8_fn npurt_i8__scalar;
#define NPURT_FORMAT(name, ...) extern npurt_gemv_fn npurt_gemv_##name##__scalar;
#include "formats.inc"

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const npurt_level npurt_level__avx2, npurt_level__avx512;
extern npurt_gemm_fn npurt_gemm__amxint8;
extern npurt_i8_fn npurt_i8__avx2, npurt_i8__avx512vnni;
#define NPURT_FORMAT(name, ...)                                                                    \
    extern npurt_gemv_fn npurt_gemv_##name##__avx2, npurt_gemv_##name##__avx512vnni;
#include "formats.inc"

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t) hi << 32 | lo;
}

/* Returns 1 if all `bits` of a register of CPUID leaf 7 or 1 are set, and the OS saves `state`. */
static int has(uint32_t leaf, int reg, uint32_t bits, uint64_t state)
{
    uint32_t r[4], one[4];
    if (!__get_cpuid(1, one, one + 1, one + 2, one + 3) || !(one[2] >> 27 & 1) ||
        (xcr0() & state) != state || !__get_cpuid_count(leaf, 0, r, r + 1, r + 2, r + 3)) {
        return 0;
    }
    return (r[reg] & bits) == bits;
}

static int has_avx2(void)
{
    const uint32_t fma_f16c_avx = 1u << 12 | 1u << 29 | 1u << 28;
    return has(1, 2, fma_f16c_avx, 6) && has(7, 1, 1u << 5, 6);
}

static int has_avx512vnni(void)
{
    const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    return has_avx2() && has(7, 1, f_dq_bw_vl, 0xE6) && has(7, 2, 1u << 11, 0xE6);
}

static int has_amxint8(void)
{
    const uint32_t tile_int8 = 1u << 24 | 1u << 25;
    const long request_permission = 0x1023, tile_data = 18;
    return has_avx512vnni() && has(7, 3, tile_int8, 0x60000) &&
           syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

const npurt_isa npurt_isas[] = {
    {"amxint8",
     has_amxint8,
     &npurt_level__avx512,
     {
#define NPURT_FORMAT(name, ...) npurt_gemv_##name##__avx512vnni,
#include "formats.inc"
     },
     npurt_gemm__amxint8,
     npurt_i8__avx512vnni},
    {"avx512vnni",
     has_avx512vnni,
     &npurt_level__avx512,
     {
#define NPURT_FORMAT(name, ...) npurt_gemv_##name##__avx512vnni,
#include "formats.inc"
     },
     NULL,
     npurt_i8__avx512vnni},
    {"avx2",
     has_avx2,
     &npurt_level__avx2,
     {
#define NPURT_FORMAT(name, ...) npurt_gemv_##name##__avx2,
#include "formats.inc"
     },
     NULL,
     npurt_i8__avx2},
    {"scalar",
     always,
     &npurt_level__base,
     {
#define NPURT_FORMAT(name, ...) npurt_gemv_##name##__scalar,
#include "formats.inc"
     },
     npurt_gemm__scalar,
     npurt_i8__scalar},
};

#elif defined(__aarch64__)

#include <sys/auxv.h>

extern const npurt_level npurt_level__fp16;
extern npurt_gemm_fn npurt_gemm__neon, npurt_gemm__dotprod, npurt_gemm__i8mm;
extern npurt_i8_fn npurt_i8__neon, npurt_i8__dotprod;
#define NPURT_FORMAT(name, ...)                                                                    \
    extern npurt_gemv_fn npurt_gemv_##name##__neon, npurt_gemv_##name##__dotprod;
#include "formats.inc"

static int has_dotprod(void)
{
    const unsigned long asimddp = 1ul << 20, asimdhp = 1ul << 10;
    return (getauxval(AT_HWCAP) & (asimddp | asimdhp)) == (asimddp | asimdhp);
}

static int has_i8mm(void)
{
    return has_dotprod() && (getauxval(AT_HWCAP2) & 1ul << 13);
}

const npurt_isa npurt_isas[] = {
    {"i8mm",
     has_i8mm,
     &npurt_level__fp16,
     {
#define NPURT_FORMAT(name, ...) npurt_gemv_##name##__dotprod,
#include "formats.inc"
     },
     npurt_gemm__i8mm,
     npurt_i8__dotprod},
    {"dotprod",
     has_dotprod,
     &npurt_level__fp16,
     {
#define NPURT_FORMAT(name, ...) npurt_gemv_##name##__dotprod,
#include "formats.inc"
     },
     npurt_gemm__dotprod,
     npurt_i8__dotprod},
    {"neon",
     always,
     &npurt_level__base,
     {
#define NPURT_FORMAT(name, ...) npurt_gemv_##name##__neon,
#include "formats.inc"
     },
     npurt_gemm__neon,
     npurt_i8__neon},
    {"scalar",
     always,
     &npurt_level__base,
     {
#define NPURT_FORMAT(name, ...) npurt_gemv_##name##__scalar,
#include "formats.inc"
     },
     npurt_gemm__scalar,
     npurt_i8__scalar},
};

#endif

const int npurt_isas_count = sizeof npurt_isas / sizeof *npurt_isas;

int npurt_isa_count(void)
{
    return npurt_isas_count;
}

const char *npurt_isa_name(int isa)
{
    return npurt_isas[isa].name;
}

int npurt_isa_works(int isa)
{
    return npurt_isas[isa].works();
}

int64_t npurt_sizeof_op(void)
{
    return (int64_t) sizeof(npurt_op);
}
