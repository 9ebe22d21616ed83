"""Read bfloat16 arrays of other libraries by DLPack; numpy has no bfloat16.

Source: dlpack.h of DLPack 1.0 (DLManagedTensor, DLTensor, DLDataType), and the Python
specification of `__dlpack__`: an unconsumed capsule frees its tensor when it is deleted.
"""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

HOSTS = (1, 3, 11, 13)  # kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged
BFLOAT = 4  # kDLBfloat
NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    """A DLTensor, the first field of a DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements; NULL: C order
        ("byte_offset", ctypes.c_uint64),
    )


def bfloat16(x: Any) -> npt.NDArray[np.float32] | None:
    """Return the values of *x*, or None if *x* is not a bfloat16 array in host memory."""
    if x.__dlpack_device__()[0] not in HOSTS:
        return None
    capsule = x.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, NAME))
    if (tensor.code, tensor.bits, tensor.lanes) != (BFLOAT, 16, 1):
        return None
    shape = tuple(tensor.shape[: tensor.ndim])
    if 0 in shape:
        return np.zeros(shape, np.float32)
    strides = _strides(tensor, shape)
    ahead = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    behind = -sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    start = tensor.data + tensor.byte_offset - 2 * behind
    memory = (ctypes.c_uint16 * (ahead + behind + 1)).from_address(start)
    codes: npt.NDArray[np.uint16] = np.ndarray(
        shape, np.uint16, memory, offset=2 * behind, strides=tuple(2 * s for s in strides)
    )
    return (codes.astype(np.uint32) << 16).view(np.float32)  # a copy, so the capsule may be freed


def _strides(tensor: _Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    if tensor.strides:
        return tuple(tensor.strides[: len(shape)])
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
