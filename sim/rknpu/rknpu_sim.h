/*
 * The simulator's own functions, for a program that loads it as a library.
 *
 * The library also exports open, openat, ioctl, mmap, close, stat, opendir and their variants, with
 * the C library's declarations.  If the library is preloaded, these functions replace the C
 * library's.  If a program finds them with dlsym on the library's handle, the rest of the process
 * keeps the C library's functions.  Calls on paths and descriptors that are not simulated go to the
 * C library.
 */
#ifndef RKNPU_SIM_PUBLIC_H
#define RKNPU_SIM_PUBLIC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Applies settings, "key=value key=value ...", as NPURT_SIM_RKNPU in the environment does.  Returns
 * 0, or -1 with the reason in `why`; the settings before the wrong one have been applied.
 */
__attribute__((visibility("default"))) int rknpu_sim_set(const char *settings, char *why,
                                                         size_t size);

/*
 * Writes the counters, the time model's estimates and the last refusal as a JSON object, truncated
 * to `size` bytes.  Returns the length of the whole object without a final zero.
 */
__attribute__((visibility("default"))) size_t rknpu_sim_report(char *json, size_t size);

#ifdef __cplusplus
}
#endif
#endif
