"""When a call of the skel fails, the host gets a right result or an error of the tree.

The setting `fails` of the simulator makes one call of the DSP's shell return a failure of its
public header.
"""

import gc

import pytest

from npurt.errors import DeviceFull, DeviceTimeout, DriverError, NpurtError
from npurt.hexagon.doctor import elf
from npurt.hexagon.session import skel
from tests.hexagon.dsp import code_of, simulated
from tests.hexagon.simulator import (
    CONNECTIONS,
    Product,
    end_process,
    impatient,
    opened,
    tell,
)

RIGHT = "right"
# Calls whose failure ends the product with an error.  The others only cost speed or memory.
ERRORS = {
    "HAP_mmap": (DriverError, "map"),
    "__wrap_malloc": (NpurtError, "open"),
    "__wrap_malloc:2": (DeviceFull, "could not start threads"),
    "__wrap_malloc:3": (DeviceFull, "no memory for the activations"),
    "qurt_mem_cache_clean": (DriverError, "refused to clean the cache"),
    "qurt_thread_create": (DeviceFull, "could not start threads"),
    "qurt_thread_get_priority": (DeviceFull, "could not start threads"),
}
HARMLESS = (
    "HAP_munmap", "HAP_power_set", "compute_resource_acquire", "compute_resource_attr_init",
    "compute_resource_attr_get_vtcm_ptr", "compute_resource_attr_set_vtcm_param",
    "compute_resource_release", "qurt_futex_wait", "qurt_hvx_get_units", "qurt_thread_create:2+",
    "qurt_thread_join",
)  # fmt: skip
QUEUE = {
    "dspqueue_close": RIGHT,
    "dspqueue_import": (NpurtError, "queue"),
    "dspqueue_read_noblock": (DeviceTimeout, "within"),
    "dspqueue_write": (DeviceTimeout, "within"),
}
# No result, a result without a meaning, or a result that is a count or the caller's own number.
CANNOT_FAIL = {
    "__wrap_free", "qurt_futex_wake", "qurt_sem_add", "qurt_sem_destroy", "qurt_sem_down",
    "qurt_sem_init_val", "qurt_thread_exit", "qurt_thread_get_id",
}  # fmt: skip


@pytest.fixture
def fails(simulator, monkeypatch):
    """Yield a function that lets a call fail in sessions that start later."""

    def fails(setting):
        end_process()
        words = f"fails={setting},shadow=1,coherent=0"
        monkeypatch.setenv("NPURT_SIM_FASTRPC", words)  # for workers
        tell(f"reset,{words}")

    yield fails
    end_process()
    tell("reset")


@pytest.mark.parametrize("arch", [68, 81])
def test_every_import_of_the_skel_fails_in_this_file_or_cannot_fail(arch):
    failing = {name.split(":")[0] for name in (*ERRORS, *HARMLESS, *QUEUE)}
    assert failing | CANNOT_FAIL == set(elf.read(skel.choose(arch).read_bytes()).imports)
    assert not failing & CANNOT_FAIL


@pytest.mark.parametrize("call", ERRORS)
def test_a_call_that_is_needed_ends_the_product_with_an_error(call, fails):
    error, what = ERRORS[call]
    fails(call)
    with pytest.raises(error, match=what) as raised, opened() as transport:
        Product(transport).run()
    assert raised.value.remedy


@pytest.mark.parametrize("call", HARMLESS)
def test_a_product_is_right_without_a_call_that_is_not_needed(call, fails):
    fails(call)
    with opened() as transport:
        product = Product(transport)
        assert product.run()
        assert product.run()
        if call.startswith("compute_resource") and "release" not in call:
            assert transport.info.vtcm_bytes == 0
        assert transport.info.power == (call != "HAP_power_set")
        del product
        gc.collect()


def run_once(**fields):
    with opened(**fields) as transport:
        product = Product(transport)
        impatient(transport)
        product.run()


@pytest.mark.parametrize("call", QUEUE)
def test_a_queue_that_fails_gives_an_error_and_never_a_wrong_result(call, fails):
    fails(call)
    if QUEUE[call] is RIGHT:
        with opened(transport="dspqueue") as transport:
            assert Product(transport).run()
        return
    error, what = QUEUE[call]
    with pytest.raises(error, match=what):
        run_once(transport="dspqueue")


@pytest.mark.parametrize(
    ("nth", "name"),
    [(1, "invoke"), (5, "invoke"), (6, "invoke"), *((7, name) for name in CONNECTIONS)],
)
def test_no_refused_cleaning_of_the_cache_gives_an_old_result(nth, name, fails):
    """The first batch takes x, two y and two w from the host; calls 6 and 7 give it the two y."""
    fails(f"qurt_mem_cache_clean:{nth}")
    with opened(**CONNECTIONS[name]) as transport:
        product = Product(transport)
        with pytest.raises(DriverError, match="refused to clean the cache"):
            product.run()
        assert product.run()


def test_a_refused_cleaning_shows_in_every_later_batch(fails):
    fails("qurt_mem_cache_clean:9+")
    with opened() as transport:
        product = Product(transport)
        assert product.run()
        for _ in range(2):
            with pytest.raises(DriverError, match="refused to clean the cache"):
                product.run()


def test_a_checksum_of_memory_that_was_not_cleaned_is_an_error(simulator):
    with simulated("fails=qurt_mem_cache_clean") as session:
        block = session.allocate(4096)
        assert code_of(session.call, "checksum", b"", block.fd, 0, block.nbytes) == 0x80000401
