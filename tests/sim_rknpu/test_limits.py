"""Test exhausted memory, and the IOMMU domains of the vendor's driver."""

import numpy as np
import pytest

from tests.sim_rknpu import client
from tests.sim_rknpu.bench import Bench, exact, hangs, operands
from tests.sim_rknpu.client import Rknpu, Rocket
from tests.sim_rknpu.lists import Task

TASK = Task(4, 64, 64)
FULL = {Rocket: "ENOSPC", Rknpu: "ENOMEM"}  # the error of each driver if its addresses are used up


def test_a_space_takes_so_many_bytes_in_whole_pages(driver):
    client.configure("space=64K")

    held = [driver.create(16385), driver.create(4096 * 11)]  # 5 pages and 11
    with pytest.raises(OSError, match=FULL[type(driver)]):
        driver.create(1)
    held[0].destroy()
    held[0] = driver.create(4096 * 5)
    with pytest.raises(OSError, match=FULL[type(driver)]):
        driver.create(1)


def test_each_file_of_rocket_has_a_space_and_all_files_of_rknpu_share_one(driver):
    client.configure("space=4096")

    held = driver.create(4096)
    with type(driver)() as other:
        if isinstance(driver, Rocket):
            other.create(4096)
        else:
            with pytest.raises(OSError, match="ENOMEM"):
                other.create(4096)
    assert len(held.bytes) == 4096


def test_all_buffers_share_the_memory_and_it_may_shrink(driver):
    client.configure("memory=1M")
    with type(driver)() as other:
        held = [driver.create(1 << 19), other.create(1 << 19)]
        with pytest.raises(OSError, match="ENOMEM"):
            driver.create(1)
        client.configure("memory=512K")
        held[0].destroy()
        with pytest.raises(OSError, match="ENOMEM"):  # existing buffers remain
            driver.create(1)
        assert held[1].bytes.size == 1 << 19
    driver.create(1 << 19)


@pytest.mark.parametrize("size", ["1X", "K", "-1", "1KK", "1e3", "2000000000000"])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(ValueError, match="expected a number"):
        client.configure(f"memory={size}")


# --- IOMMU domains ------------------------------------------------------------------------------


def test_each_domain_has_all_addresses():
    client.configure("space=8192")
    with Rknpu() as driver:
        held = []
        for driver.domain in (0, 1, 15):
            held.append(driver.create(8192))
            with pytest.raises(OSError, match="ENOMEM"):
                driver.create(1)
    assert len({buffer.iova for buffer in held}) == 1


def test_a_job_runs_in_its_domain_and_the_switches_are_counted():
    with Rknpu() as driver:
        benches = []
        for driver.domain in (0, 3):
            seed = driver.domain
            benches.append((driver.domain, Bench(driver, TASK, *operands(TASK, seed)), seed))
        client.configure("counters=0")
        for driver.domain, bench, seed in [*benches, *benches]:
            bench.fill()
            np.testing.assert_array_equal(bench.run(), exact(TASK, *operands(TASK, seed)))
    assert client.report()["domain_switches"] == 4


def test_a_job_in_another_domain_finds_nothing():
    with Rknpu() as driver:
        bench = Bench(driver, TASK, *operands(TASK))
        driver.domain = 2
        with hangs(driver):
            bench.run()


@pytest.mark.parametrize(("version", "domain"), [(907, 1), (908, 16), (908, -1)])
def test_domains_that_there_are_not(version, domain):
    client.configure(f"version={version}")
    with Rknpu() as driver:
        driver.create(64)
        driver.domain = domain
        with pytest.raises(OSError, match="EINVAL"):
            driver.create(64)
