"""Requests of every DRM driver, and the type of a request.  Declarations only.

In ABI mode cffi cannot check a struct against its header.  So each request states the size and the
number that C computes, and a test checks both.  Source: Linux include/uapi/drm/drm.h.
"""

from typing import NamedTuple

READ, WRITE = 2, 1  # direction bits: READ if the kernel writes the struct, WRITE if it reads it


class Ioctl(NamedTuple):
    """An ioctl."""

    name: str  # name in error messages
    direction: int
    nr: int
    struct: str
    size: int
    number: int


CDEF = """
struct drm_version {
    int version_major, version_minor, version_patchlevel;
    size_t name_len; char *name;
    size_t date_len; char *date;
    size_t desc_len; char *desc;
};
struct drm_gem_close { uint32_t handle, pad; };
"""

VERSION = Ioctl("VERSION", 3, 0x00, "struct drm_version", 64, 0xC040_6400)
GEM_CLOSE = Ioctl("GEM_CLOSE", 1, 0x09, "struct drm_gem_close", 8, 0x4008_6409)

REQUESTS = (VERSION, GEM_CLOSE)
