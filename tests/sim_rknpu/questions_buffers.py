"""Questions to the mainline driver about its node and its buffers."""

import struct

from tests.sim_rknpu import client
from tests.sim_rknpu.client import CREATE_BO, GEM_CLOSE
from tests.sim_rknpu.questions import NOWHERE, case, cases, new, said, sized, words

# --- the node ----------------------------------------------------------------------------------


@case
def version(opened):
    return words(*opened().version())


@case
def version_with_room_for_three(opened):
    driver = opened()
    text = driver.ffi.new("char[4]", b"....")
    at = int(driver.ffi.cast("uint64_t", text))
    out = driver.ioctl(client.VERSION, struct.pack("<iiii6Q", 0, 0, 0, 0, 3, at, 0, 0, 0, 0))
    lengths = struct.unpack("<iiii6Q", out)[4::2]
    return words(bytes(driver.ffi.buffer(text, 4)).decode(), *lengths)


@cases(
    after_the_last=0xC0106444,
    far_beyond=0xC0106455,
    of_no_driver=0x5401,
    of_another_type=0xC0187840,
)
def request(opened, number):
    return said(opened().ioctl, number, bytes(64))


@case
def argument_nowhere(opened):
    driver = opened()
    result = driver.lib.ioctl(driver.fd, CREATE_BO, driver.ffi.cast("void *", NOWHERE))
    return said(driver.check, result)


# --- buffers -----------------------------------------------------------------------------------


@cases(
    of_0_bytes=0,
    of_1_byte=1,
    of_a_page=4096,
    of_a_page_and_a_byte=4097,
    of_2_GiB=0x80000000,
    of_4_GiB_less_1=0xFFFFFFFF,
)
def create(opened, size):
    driver = opened()
    return words(said(new, driver, size), "then", said(new, driver, 64))


@case
def create_with_a_short_struct(opened):
    return said(new, opened(), 64, sized(CREATE_BO, 8), 8)


@case
def create_with_a_long_struct(opened):
    driver = opened()
    args = struct.pack("<IIQQQ", 64, 0, 0, 0, 77)
    return words(*struct.unpack("<IIQQQ", driver.ioctl(sized(CREATE_BO, 32), args)))


@case
def fields_that_create_should_not_read(opened):
    driver = opened()
    args = struct.pack("<IIQQ", 64, 99, 98, 97)
    return words(*struct.unpack("<IIQQ", driver.ioctl(CREATE_BO, args)))


@case
def addresses_of_buffers(opened):
    driver = opened()
    sizes = (1, 4096, 5000, 64, 1 << 20, 16)
    return words(*(hex(new(driver, size)[1]) for size in sizes))


@case
def addresses_after_some_are_closed(opened):
    driver = opened()
    made = [new(driver, size) for size in (8192, 4096, 4096, 16384, 4096)]
    for handle in (made[0][0], made[3][0]):
        driver.ioctl(GEM_CLOSE, struct.pack("<II", handle, 0))
    again = [new(driver, size) for size in (4096, 8192, 12288, 4096, 8192)]
    return words(*(f"{handle} {address:#x}" for handle, address, _ in again))


@case
def first_address_of_a_second_file(opened):
    first, second = opened(), opened()
    return words(*(hex(new(each, 64)[1]) for each in (first, second, first)))


@case
def new_memory(opened):
    driver = opened()
    buffer = driver.create(5000)
    before = set(buffer.bytes.tolist())
    buffer.bytes[:] = 7
    buffer.destroy()
    return words(before, "again", set(driver.create(5000).bytes.tolist()))


@cases(twice=(1, 1), of_nothing=(9,), of_zero=(0,), of_all_bits=(0xFFFFFFFF,))
def close(opened, handles):
    driver = opened()
    new(driver, 64)
    return words(
        *(said(driver.ioctl, GEM_CLOSE, struct.pack("<II", handle, 0)) for handle in handles)
    )


@case
def close_with_padding(opened):
    driver = opened()
    return said(driver.ioctl, GEM_CLOSE, struct.pack("<II", new(driver, 64)[0], 5))


@cases(
    whole=(8192, 0, 1),
    its_first_page=(4096, 0, 1),
    a_byte=(1, 0, 1),
    a_page_more=(12288, 0, 1),
    its_second_page=(4096, 4096, 1),
    nowhere=(4096, 1 << 40, 1),
    cut_to_32_bits=(4096, -(1 << 32), 1),
    private=(4096, 0, 2),
    of_no_bytes=(0, 0, 1),
)
def mapping(opened, row):
    driver = opened()
    nbytes, offset, flags = row
    start = new(driver, 8192)[2]
    return said(mapped, driver, nbytes, start + offset, flags)


def mapped(driver, nbytes, offset, flags=1):
    at = driver.lib.mmap(driver.ffi.NULL, nbytes, 3, flags, driver.fd, offset)
    driver.check(-1 if at == driver.ffi.cast("void *", -1) else 0)
    driver.lib.munmap(at, nbytes)


@case
def mapping_a_buffer_of_another_file(opened):
    first, second = opened(), opened()
    return said(mapped, second, 4096, new(first, 64)[2])


@case
def mapping_that_outlives_its_buffer(opened):
    driver = opened()
    buffer = driver.create(64)
    buffer.bytes[:] = 7
    buffer.destroy()
    driver.create(64).bytes[:] = 8
    return words(set(buffer.bytes.tolist()))
