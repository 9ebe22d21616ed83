/* Codes that libcdsprpc returns.  Source: qualcomm/fastrpc inc/AEEStdErr.h.  Codes from the DSP
 * have 0x80000400 added. */
#ifndef AEE_H
#define AEE_H

enum {
    AEE_SUCCESS = 0,
    AEE_EFAILED = 1,
    AEE_ENOMEMORY = 2,
    AEE_EALREADYLOADED = 5,
    AEE_EEXPIRED = 0xc,
    AEE_EBADSTATE = 0xd,
    AEE_EBADPARM = 0xe,
    AEE_EUNSUPPORTED = 0x14,
    AEE_EALREADY = 0x1a,
    AEE_ENOSUCH = 0x27,
    AEE_EINVHANDLE = 0x2c,
    AEE_EINTERRUPTED = 0x2e,
    AEE_ENOSUCHMAP = 0x48,
    AEE_EBADSIZE = 0x4d,
    AEE_EBADCONTEXT = 0x54,
    AEE_ECONNRESET = 0x68,
    AEE_ENOTINITIALIZED = 0x6b,
    AEE_EUNSUPPORTEDAPI = 0x6c,
    AEE_ECONNREFUSED = 0x72,
    AEE_ENOSESSION = 0x8a,
    AEE_ERPC = 0x200,
    AEE_EWOULDBLOCK = 0x204,
    DSP_EUNABLETOLOAD = (int) 0x80000406,
    DSP_EBADSTATE = (int) 0x8000040d,
    DSP_EINVHANDLE = (int) 0x8000042c,
    DSP_ENOSUCHSYMBOL = (int) 0x80000442,
};

#endif
