/*
 * Selects the variant of each inner loop for this machine.  All variants give the same bits.
 *
 * Feature bits: Intel SDM vol. 2A, CPUID; Linux Documentation/arch/arm64/elf_hwcaps.rst.
 */
#include "kernels.h"

#if defined(__x86_64__)

#include <cpuid.h>

enum { OSXSAVE = 1 << 27, AVX2 = 1 << 5, AVX512_F_DQ_BW = 1 << 16 | 1 << 17 | 1 << 30 };
enum { AVX512_VNNI = 1 << 11, YMM_STATE = 0x6, ZMM_STATE = 0xE6 };

static bool has_all(uint32_t bits, uint32_t wanted)
{
    return (bits & wanted) == wanted;
}

/* Returns whether the processor has the features of leaf 7 and the system saves the registers. */
static bool has(uint32_t ebx_bits, uint32_t ecx_bits, uint32_t state)
{
    uint32_t eax, ebx, ecx, edx, low, high;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & OSXSAVE)) {
        return false;
    }
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return has_all(low, state) && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           has_all(ebx, ebx_bits) && has_all(ecx, ecx_bits);
}

static dot_fn *find_dot(void)
{
    if (has(AVX512_F_DQ_BW, AVX512_VNNI, ZMM_STATE)) {
        return dot__avx512vnni;
    }
    return has(AVX2, 0, YMM_STATE) ? dot__avx2 : dot__scalar;
}

static const struct floats *find_floats(void)
{
    if (has(AVX512_F_DQ_BW, 0, ZMM_STATE)) {
        return &floats__avx512;
    }
    return has(AVX2, 0, YMM_STATE) ? &floats__avx2 : &floats__base;
}

#else

#include <sys/auxv.h>

enum { HAS_ASIMDDP = 1 << 20 };

static dot_fn *find_dot(void)
{
    return getauxval(AT_HWCAP) & HAS_ASIMDDP ? dot__dotprod : dot__scalar;
}

static const struct floats *find_floats(void)
{
    return &floats__base;
}

#endif

dot_fn *dot_best;
const struct floats *floats_best;

/* Selects once, at load, because cpuid in a virtual machine takes longer than a small task. */
__attribute__((constructor)) static void choose(void)
{
    dot_best = find_dot();
    floats_best = find_floats();
}
