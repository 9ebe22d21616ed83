"""C declarations of libcdsprpc, for cffi in ABI mode.

npurt uses ABI mode because the library exists only on boards.  Nothing is linked at install time,
so one wheel works on hosts, phones and boards.  ABI mode cannot check a struct against its header;
tests/hexagon/test_abi.py checks sizes and offsets against those of the headers on LP64.
Source: qualcomm/fastrpc inc/remote.h, rpcmem.h, dspqueue.h, AEEStdErr.h (v1.0.5).
"""

from enum import IntEnum, IntFlag
from typing import Any

from cffi import FFI

from npurt.base.once import once

CDEF = """
typedef uint32_t remote_handle;
typedef uint64_t remote_handle64;
typedef struct { void *pv; size_t nLen; } remote_buf;
typedef struct { int32_t fd; uint32_t offset; } remote_dma_handle;
typedef union {
    remote_buf buf; remote_handle h; remote_handle64 h64; remote_dma_handle dma;
} remote_arg;

int remote_handle64_open(const char *name, remote_handle64 *handle);
int remote_handle64_invoke(remote_handle64 handle, uint32_t scalars, remote_arg *arguments);
int remote_handle64_close(remote_handle64 handle);
int remote_handle64_control(remote_handle64 handle, uint32_t request, void *data, uint32_t nbytes);
int remote_handle_control(uint32_t request, void *data, uint32_t nbytes);
int remote_session_control(uint32_t request, void *data, uint32_t nbytes);

typedef struct { int domain, prio, stack_size; } remote_rpc_thread_params;
typedef struct { int domain, enable; } remote_rpc_control_unsigned_module;
typedef struct { int domain, process_type; } remote_process_type;
typedef struct { int domain; } remote_rpc_process_exception;
typedef struct {
    char *domain_name; uint32_t domain_name_len;
    char *session_name; uint32_t session_name_len;
    uint32_t effective_domain_id, session_id;
} remote_rpc_reserve_new_session;
typedef struct {
    char *domain_name; uint32_t domain_name_len, session_id, effective_domain_id;
} remote_rpc_effective_domain_id;
typedef struct {
    char *domain_name; uint32_t domain_name_len, session_id;
    char *module_uri; uint32_t module_uri_len;
    char *uri; uint32_t uri_len;
} remote_rpc_get_uri;
typedef struct { uint32_t enable, latency; } remote_rpc_control_latency;
typedef struct { uint32_t domain, attribute_id, capability; } remote_dsp_capability;

void *rpcmem_alloc(int heap, uint32_t flags, int nbytes);
void *rpcmem_alloc2(int heap, uint32_t flags, size_t nbytes);
void rpcmem_free(void *memory);
int rpcmem_to_fd(void *memory);
int fastrpc_mmap(int domain, int fd, void *address, int offset, size_t nbytes, uint32_t flags);
int fastrpc_munmap(int domain, int fd, void *address, size_t nbytes);

typedef void *dspqueue_t;
typedef void (*dspqueue_callback_t)(dspqueue_t queue, int error, void *context);
typedef struct {
    uint32_t fd, size, offset, flags;
    union { void *ptr; uint64_t address; };
} dspqueue_buffer;
int dspqueue_create(int domain, uint32_t flags, uint32_t request_bytes, uint32_t response_bytes,
                    dspqueue_callback_t packet, dspqueue_callback_t error, void *context,
                    dspqueue_t *queue);
int dspqueue_close(dspqueue_t queue);
int dspqueue_export(dspqueue_t queue, uint64_t *id);
int dspqueue_write(dspqueue_t queue, uint32_t flags, uint32_t buffers, dspqueue_buffer *buffer,
                   uint32_t nbytes, const uint8_t *message, uint32_t timeout_us);
int dspqueue_read(dspqueue_t queue, uint32_t *flags, uint32_t max_buffers, uint32_t *buffers,
                  dspqueue_buffer *buffer, uint32_t max_bytes, uint32_t *nbytes, uint8_t *message,
                  uint32_t timeout_us);

int ioctl(int fd, unsigned long request, void *argument);

int npurt_sim_control(const char *settings);
size_t npurt_sim_error(char *text, size_t bytes);
uint64_t npurt_sim_total_packets(int domain);
int npurt_sim_process(int domain);
"""

SYMBOLS = (  # functions that every usable library has
    "remote_handle64_open",
    "remote_handle64_invoke",
    "remote_handle64_close",
    "remote_session_control",
    "rpcmem_alloc",
    "rpcmem_free",
    "rpcmem_to_fd",
    "fastrpc_mmap",
    "fastrpc_munmap",
)
DSPQUEUE = (
    "dspqueue_create",
    "dspqueue_close",
    "dspqueue_export",
    "dspqueue_write",
    "dspqueue_read",
)
SIMULATOR = (  # functions of npurt's simulator only
    "npurt_sim_control",
    "npurt_sim_error",
    "npurt_sim_total_packets",
    "npurt_sim_process",
)
OPTIONAL = (
    "rpcmem_alloc2",
    "remote_handle_control",
    "remote_handle64_control",
    *DSPQUEUE,
    *SIMULATOR,
)

CDSP = {"cdsp": 3, "cdsp1": 4}  # domain ids of the compute DSPs


class SessionRequest(IntEnum):
    """Requests of remote_session_control.

    FASTRPC_SESSION_CLOSE (7) is omitted because it crashes while a handle is open.
    """

    THREAD_PARAMS = 1
    UNSIGNED_MODULE = 2
    PROCESS_EXCEPTION = 9
    PROCESS_TYPE = 10
    RESERVE_NEW_SESSION = 13
    GET_EFFECTIVE_DOMAIN_ID = 14
    GET_URI = 15


class HandleRequest(IntEnum):
    """Requests of remote_handle_control and remote_handle64_control."""

    LATENCY = 1
    GET_DSP_INFO = 2


class Attribute(IntEnum):
    """Attributes of a DSP that GET_DSP_INFO returns."""

    DOMAIN_SUPPORT = 0
    UNSIGNED_PD_SUPPORT = 1
    HVX_SUPPORT_128B = 3  # number of HVX contexts
    VTCM_PAGE = 4  # bytes of a page
    VTCM_COUNT = 5  # number of pages
    ARCH_VER = 6  # the low byte is the version in hex digits, 0x68 for v68
    HMX_SUPPORT_DEPTH = 7
    HMX_SUPPORT_SPATIAL = 8


class MapFlag(IntEnum):
    """Flags of fastrpc_mmap."""

    FD = 2  # the DSP maps the memory at once, until munmap
    FD_DELAYED = 3  # only the DSP's MMU is set up; code on the DSP maps the memory by its fd


class BufferFlag(IntFlag):
    """Flags of a dspqueue_buffer."""

    FLUSH_SENDER = 0x10
    INVALIDATE_SENDER = 0x20
    FLUSH_RECIPIENT = 0x40
    INVALIDATE_RECIPIENT = 0x80


class SyncFlag(IntFlag):
    """Flags of DMA_BUF_IOCTL_SYNC; source: include/uapi/linux/dma-buf.h."""

    READ = 1
    WRITE = 2
    END = 4


DMA_BUF_IOCTL_SYNC = 0x4008_6200
HEAP_SYSTEM = 25  # rpcmem heap; Linux ignores it
CACHED = 1  # rpcmem flag
PM_QOS = 1  # value of `enable` in remote_rpc_control_latency
INVALID = (1 << 64) - 1  # (void *) -1, which rpcmem_alloc returns when mmap fails


@once
def ffi() -> Any:
    """Parse `CDEF` at the first use, so that importing npurt.hexagon takes no time."""
    parser = FFI()
    parser.cdef(CDEF)
    return parser
