/* dsp/reference as a library of the host: what is hidden elsewhere is exported. */
#pragma GCC visibility push(default)
#include "reference/multiply.c"
#include "reference/quantise.c"
