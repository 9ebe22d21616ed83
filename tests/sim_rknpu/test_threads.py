"""Test threads that open, use and close the node concurrently, also under ThreadSanitizer."""

import sys

from tests.sim_rknpu.test_preload import preloaded

USERS = """
import fcntl, os, threading
VERSION = bytes(64)  # struct drm_version: no room for any of the names

def use():
    for _ in range(300):
        fd = os.open("/dev/accel/accel0", os.O_RDWR)
        seen.add(fcntl.ioctl(fd, 0xC0406400, VERSION)[:4])
        os.close(fd)

seen = set()
users = [threading.Thread(target=use) for _ in range(4)]
for user in users:
    user.start()
for user in users:
    user.join()
print(seen)
"""


def test_threads_open_and_close_the_node_at_once():
    out, _ = preloaded(sys.executable, "-c", USERS)

    assert out == "{b'\\x00\\x00\\x00\\x00'}\n"
