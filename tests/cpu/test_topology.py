"""Tests of the choice of CPUs and threads, on file trees of other machines and on invalid trees."""

import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.pool.topology import Topology, fast_cpus, quota, threads_to_use, topology
from npurt.errors import SettingError

CPU = "sys/devices/system/cpu/cpu{}/"
CGROUP = "sys/fs/cgroup/"


def tree(root, files):
    """Write *files* (path -> text) below *root*; return *root*."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def capacities(*values):
    """Return the files that give each CPU its capacity (1024 is the fastest core)."""
    return {f"{CPU.format(i)}cpu_capacity": f"{value}\n" for i, value in enumerate(values)}


def frequencies(*kilohertz):
    return {f"{CPU.format(i)}cpufreq/cpuinfo_max_freq": f"{f}\n" for i, f in enumerate(kilohertz)}


# --- Cores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "fast"),
    [
        pytest.param(capacities(*[530] * 4, *[1024] * 4), (4, 5, 6, 7), id="RK3588: 4 A55, 4 A76"),
        pytest.param(
            capacities(*[381] * 4, *[908] * 3, 1024), (4, 5, 6, 7), id="QCS6490: 4 A55, 3 + 1 A78"
        ),
        pytest.param(capacities(*[1024] * 4), (0, 1, 2, 3), id="all the same"),
        pytest.param(
            frequencies(*[1800000] * 4, *[2400000] * 2), (0, 1, 2, 3, 4, 5), id="near enough"
        ),
        pytest.param(
            frequencies(*[1416000] * 4, *[2256000] * 2), (4, 5), id="no capacities, frequencies"
        ),
        pytest.param({}, (0, 1, 2, 3), id="nothing is known"),
        pytest.param(capacities(530, 530, 1024), (0, 1, 2, 3), id="one is not known"),
    ],
)
def test_threads_go_to_the_fast_cores(tmp_path, files, fast):
    cpus = range(max(4, len(files)))

    here = topology(tree(tmp_path, files), cpus)

    assert here.cpus == fast
    assert here.pinned == (len(fast) < len(cpus))
    assert here.threads == len(fast)


def test_only_the_cores_this_process_may_use_count(tmp_path):
    """A process that may use only slow cores uses them."""
    root = tree(tmp_path, capacities(*[530] * 4, *[1024] * 4))

    assert fast_cpus([1, 2, 3, 5], root) == (5,)
    assert topology(root, [3, 1]) == Topology(cpus=(1, 3), pinned=False, limit=2)


def test_this_machine_offers_at_least_one_cpu_it_allows():
    here = topology()

    assert set(here.cpus) <= os.sched_getaffinity(0)
    assert 1 <= here.threads <= len(here.cpus)


# --- Quotas -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        pytest.param({}, math.inf, id="no cgroups"),
        pytest.param({"proc/self/cgroup": "0::/\n"}, math.inf, id="v2, no limit file"),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", CGROUP + "cpu.max": "max 100000\n"},
            math.inf,
            id="v2, no limit",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", CGROUP + "cpu.max": "150000 100000\n"},
            1.5,
            id="v2 in a container",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/kubepods/pod1/main\n",
                CGROUP + "kubepods/cpu.max": "800000 100000\n",
                CGROUP + "kubepods/pod1/cpu.max": "200000 100000\n",
                CGROUP + "kubepods/pod1/main/cpu.max": "max 100000\n",
            },
            2,
            id="v2, the narrowest of the nested ones",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "12:memory:/docker/1\n5:cpu,cpuacct:/docker/1\n0::/\n",
                CGROUP + "cpu/docker/1/cpu.cfs_quota_us": "300000\n",
                CGROUP + "cpu/docker/1/cpu.cfs_period_us": "100000\n",
            },
            3,
            id="v1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/1\n",
                CGROUP + "cpu/cpu.cfs_quota_us": "50000\n",
                CGROUP + "cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
            id="v1 seen from inside the container",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/\n",
                CGROUP + "cpu/cpu.cfs_quota_us": "-1\n",
                CGROUP + "cpu/cpu.cfs_period_us": "100000\n",
            },
            math.inf,
            id="v1, no limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/1\n",
                CGROUP + "cpu/docker/cpu.cfs_quota_us": "200000\n",
                CGROUP + "cpu/docker/cpu.cfs_period_us": "100000\n",
                CGROUP + "cpu/docker/1/cpu.cfs_quota_us": "-1\n",
                CGROUP + "cpu/docker/1/cpu.cfs_period_us": "100000\n",
            },
            2,
            id="v1, a limit of the parent",
        ),
    ],
)
def test_the_quota_is_what_the_cgroups_pay_for(tmp_path, files, cpus):
    assert quota(tree(tmp_path, files)) == cpus


@pytest.mark.parametrize(("limit", "threads"), [("50000", 1), ("150000", 1), ("300000", 3)])
def test_threads_are_no_more_than_the_quota_pays_for_and_at_least_one(tmp_path, limit, threads):
    files = {"proc/self/cgroup": "0::/\n", CGROUP + "cpu.max": f"{limit} 100000"}
    root = tree(tmp_path, {**capacities(*[1024] * 4), **files})

    assert topology(root, range(4)).threads == threads


# --- Invalid files ------------------------------------------------------------------------------

NONSENSE = [
    *("", "\n", "nan", "inf", "-inf", "-5", "0", "1e400", "none", "max", "max max"),
    *("100000 0", "0 0", "-1 -1", "1 2 3", "1" + "0" * 400 + " 1"),
    *("0::", "0::/../../..", "0::/\0", ":::::", "5:cpu:", "5:cpu"),
]
junk = st.one_of(st.sampled_from(NONSENSE), st.text(max_size=20), st.binary(max_size=20))


@given(st.lists(junk, min_size=4, max_size=4), junk, junk, junk)
def test_no_tree_makes_it_fail_or_use_what_it_may_not(tmp_path_factory, speeds, groups, limit, v1):
    cpus = {2, 5, 7, 9}
    files = {
        **{CPU.format(c) + "cpu_capacity": text for c, text in zip(cpus, speeds, strict=True)},
        "proc/self/cgroup": groups,
        CGROUP + "cpu.max": limit,
        CGROUP + "cpu/cpu.cfs_quota_us": v1,
        CGROUP + "cpu/cpu.cfs_period_us": limit,
    }

    here = topology(tree(tmp_path_factory.mktemp("tree"), files), cpus)

    assert here.cpus
    assert set(here.cpus) <= cpus
    assert 1 <= here.threads <= 4


# --- Requested threads --------------------------------------------------------------------------

EIGHT = Topology(cpus=tuple(range(8)), pinned=False, limit=6)


@pytest.mark.parametrize(("asked", "threads"), [(None, 6), (0, 6), (1, 1), (8, 8), (256, 256)])
def test_a_number_of_threads_asked_for_is_used(monkeypatch, asked, threads):
    monkeypatch.delenv("NPURT_THREADS", raising=False)

    assert threads_to_use(asked, EIGHT) == threads


def test_the_variable_counts_when_nobody_asks(monkeypatch):
    monkeypatch.setenv("NPURT_THREADS", "3")

    assert threads_to_use(None, EIGHT) == 3
    assert threads_to_use(2, EIGHT) == 2


@pytest.mark.parametrize("value", ["-1", "257", "many"])
def test_a_variable_that_makes_no_sense_is_refused(monkeypatch, value):
    monkeypatch.setenv("NPURT_THREADS", value)

    with pytest.raises(SettingError, match=value):
        threads_to_use(None, EIGHT)
