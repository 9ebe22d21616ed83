/* Needs what no PD has. */
#include "dsp.h"

int nobody_has_this(void);

EXPORT int stranger_skel_handle_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments)
{
    (void) handle;
    (void) scalars;
    (void) arguments;
    return nobody_has_this();
}
