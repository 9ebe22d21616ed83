/*
 * The simulator's own functions, for a program that loads it as a library.
 *
 * The library also exports open, openat, ioctl, mmap, close, stat, opendir and their variants, with
 * the C library's declarations.  When preloaded, they replace the C library's.  When found with dlsym
 * on the library's handle, they change nothing else in the process.  They pass calls that are not
 * simulated to the C library.
 */
#ifndef RKNPU_SIM_PUBLIC_H
#define RKNPU_SIM_PUBLIC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Applies settings, "key=value key=value ...", the same as NPURT_SIM_RKNPU in the environment.
 * Returns 0, or -1 with the reason in `why`; words before the bad one have been applied.
 */
__attribute__((visibility("default"))) int rknpu_sim_set(const char *settings, char *why,
                                                         size_t size);

/*
 * Writes the counters, the model's estimates and the last refusal as a JSON object, cut to `size`.
 * Returns the length of the whole text without its final zero.
 */
__attribute__((visibility("default"))) size_t rknpu_sim_report(char *json, size_t size);

#ifdef __cplusplus
}
#endif
#endif
