/* Which variant of each inner loop this machine runs.  All give the same bits. */
#include "kernels.h"

#include <sys/auxv.h>

#if defined(__x86_64__)

dot_fn *dot_best(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")) {
        return dot__avx512vnni;
    }
    return __builtin_cpu_supports("avx2") ? dot__avx2 : dot__scalar;
}

dense_fn *dense_best(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
        return dense__avx512;
    }
    return __builtin_cpu_supports("avx2") ? dense__avx2 : dense__base;
}

#else

enum { HAS_ASIMDDP = 1 << 20 }; /* Linux, arch/arm64/include/uapi/asm/hwcap.h */

dot_fn *dot_best(void)
{
    return getauxval(AT_HWCAP) & HAS_ASIMDDP ? dot__dotprod : dot__scalar;
}

dense_fn *dense_best(void)
{
    return dense__base;
}

#endif
