/* Can do without what no PD has; refuses to be opened twice. */
#include "dsp.h"

__attribute__((weak)) int nobody_has_this(void);

static int opens;

EXPORT int weak_skel_handle_invoke(uint64_t handle, uint32_t scalars, remote_arg *arguments)
{
    (void) handle;
    (void) arguments;
    if (scalars >> 24 == 0) {
        return opens++ ? 0x1234 : 0;
    }
    return nobody_has_this ? 1 : 0;
}
