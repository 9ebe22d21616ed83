"""Test the search for the library, its single load, and the check of every returned code."""

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from npurt.base.library import path_of
from npurt.errors import DeviceNotFound, DriverError
from npurt.hexagon.fastrpc import abi, codes, control, lib
from npurt.hexagon.fastrpc.control import SESSIONS, SessionSlot, capabilities, session_pool
from npurt.hexagon.fastrpc.lib import CANDIDATES, find, load
from npurt.hexagon.session import skel
from tests.hexagon.fake import compile_fake
from tests.limits import HANG_SECONDS


def in_a_process(code, **environ):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


# --- Finding --------------------------------------------------------------------------------------


def test_the_first_library_that_opens_and_is_whole_is_taken(fake, tmp_path):
    nothing = tmp_path / "absent.so"

    library = load([str(nothing), str(fake.path)])

    assert library.path == str(fake.path)
    assert library.features == {
        "rpcmem_alloc2",
        "remote_handle_control",
        "remote_handle64_control",
    }
    assert not library.has_dspqueue
    assert not library.simulated


def test_the_same_file_is_one_library_however_often_it_is_asked_for(fake):
    link = fake.path.with_name("another-name.so")
    link.unlink(missing_ok=True)
    link.symlink_to(fake.path)

    assert load([str(link)]) is fake.library


def test_when_there_is_none_every_path_is_named_with_its_reason(tmp_path):
    nothing, other = tmp_path / "absent.so", tmp_path / "libc-or-so.so"
    shutil.copy(abi_less_library(), other)

    with pytest.raises(DeviceNotFound) as caught:
        load([str(nothing), str(other)])

    assert f"{nothing}: " in caught.value.what
    assert f"{other}: has no remote_handle64_open, " in caught.value.what
    assert "hexagon:sim" in caught.value.remedy


def abi_less_library():
    """Return the path of a library of this system that is not FastRPC's."""
    from npurt.cpu.kernels.abi import LIBRARY

    return path_of(LIBRARY)


def test_candidates_are_the_runtime_name_then_the_developers_then_androids():
    assert CANDIDATES == ("libcdsprpc.so.1", "libcdsprpc.so", "/vendor/lib64/libcdsprpc.so")


def test_the_setting_names_the_only_candidate(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("NPURT_FASTRPC_LIBRARY", str(fake.path))
    assert find() is fake.library

    monkeypatch.setenv("NPURT_FASTRPC_LIBRARY", str(tmp_path / "absent.so"))
    with pytest.raises(DeviceNotFound) as caught:
        find()
    assert str(tmp_path / "absent.so") in caught.value.what
    assert "libcdsprpc.so.1" not in caught.value.what
    assert find(fake.path) is fake.library  # an argument has precedence over the setting


def test_a_library_that_is_loaded_is_found_again_behind_names_that_are_not(fake, tmp_path):
    """On Android, the system's library is the last candidate."""
    last = shutil.copy(fake.path, tmp_path / "libcdsprpc.so")
    code = f"""
from npurt.hexagon.fastrpc.lib import load
candidates = ["libcdsprpc.so.99", {str(last)!r}]
assert load(candidates) is load(candidates)
"""
    done = in_a_process(code)

    assert done.returncode == 0, done.stderr


def test_a_second_fastrpc_library_is_refused_before_it_is_loaded(fake, tmp_path):
    """Two libraries would end the process; here, the constructor of the second would."""
    first, second = (shutil.copy(fake.path, tmp_path / f"lib{n}dsprpc.so.1") for n in "ca")
    code = f"""
import ctypes
from npurt.errors import DeviceNotFound
from npurt.hexagon.fastrpc.lib import load, loaded
assert loaded() == []
load([{str(first)!r}])
assert loaded() == [{str(first)!r}]
load([{str(first)!r}])
try:
    load([{str(second)!r}])
except DeviceNotFound as error:
    print(error)
assert loaded() == [{str(first)!r}]
somebody_elses = ctypes.CDLL({str(second)!r})
try:
    load([{str(first)!r}])
except DeviceNotFound as error:
    print(error)
"""
    done = in_a_process(code)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("two would end the process") == 2
    assert f"{second}: {first} is loaded" in done.stdout
    assert done.stdout.count("a process of its own") == 2


# --- Codes ----------------------------------------------------------------------------------------


def test_a_code_comes_back_unsigned_with_its_errno(fake):
    fake.answer("munmap", 0x80000406, errno.EPERM)

    assert fake.library.call("fastrpc_munmap", 3, 1, abi.ffi().NULL, 1) == (0x80000406, errno.EPERM)
    assert fake.library.call("fastrpc_munmap", 3, 1, abi.ffi().NULL, 1) == (0, 0)


def test_a_code_that_is_not_success_is_an_error_with_what_it_was_for(fake):
    fake.answer("munmap", 0x48, errno.EINVAL)

    with pytest.raises(DriverError, match="fastrpc_munmap of block 7 failed with 0x48") as caught:
        fake.library.check("fastrpc_munmap", 3, 1, abi.ffi().NULL, 1, about="block 7")
    assert (caught.value.call, caught.value.code) == ("fastrpc_munmap", 0x48)


# --- Capabilities ---------------------------------------------------------------------------------


def test_a_dsp_says_what_it_is(fake):
    told = capabilities(fake.library)

    assert told == control.Capabilities(
        arch=68, hvx_contexts=4, vtcm_bytes=8 << 20, unsigned=True, hmx=False
    )


@pytest.mark.parametrize("code", [0x72, 0xFFFFFFFF, 0x14])
def test_a_dsp_that_does_not_say_is_taken_as_unknown(fake, code):
    fake.answer("info", code, errno.EPERM, times=-1)

    assert capabilities(fake.library) == control.Capabilities()


def test_a_library_too_old_to_ask_says_nothing_either(tmp_path):
    old = load([str(compile_fake(tmp_path, defines=["OLD"], name="libold_rpc.so"))])

    assert old.features == frozenset()
    assert capabilities(old) == control.Capabilities()


# --- Sessions -------------------------------------------------------------------------------------


def test_sessions_are_handed_out_once_each_and_used_again(fake):
    sessions = session_pool(fake.library)
    first = [sessions.acquire() for _ in range(4)]

    assert first == [SessionSlot("cdsp", n, 3 + 8 * n) for n in range(4)]
    sessions.release(first[2])
    assert sessions.acquire() is first[2]
    assert fake.count("session13") == 3  # a reservation cannot be undone, so none must be wasted
    with pytest.raises(DeviceNotFound, match="session"):
        sessions.acquire()


def test_a_session_asked_for_by_number_is_that_one_or_none(fake):
    sessions = session_pool(fake.library)

    assert sessions.acquire(session=2).effective == 19
    with pytest.raises(DeviceNotFound, match="session 2 of the cdsp is in use"):
        sessions.acquire(session=2)
    assert sessions.acquire().session == 0
    assert sessions.acquire().session == 1
    with pytest.raises(DeviceNotFound):
        sessions.acquire(session=4)


@pytest.mark.parametrize("code", [0x14, 0xFFFFFFFF])
def test_an_old_library_has_session_0_under_a_uri_put_together_by_hand(fake, code):
    for request in (13, 14, 15):
        fake.answer(f"session{request}", code, times=-1)
    sessions = session_pool(fake.library)
    slot = sessions.acquire()

    assert slot == SessionSlot("cdsp", 0, 3)
    assert sessions.uri(slot, "file:///a.so?b") == "file:///a.so?b&_dom=cdsp"
    with pytest.raises(DeviceNotFound, match="no further session") as caught:
        sessions.acquire()
    assert "session 0" in caught.value.remedy


def test_the_library_writes_the_uri_where_it_can(fake):
    sessions = session_pool(fake.library)

    uri = sessions.uri(sessions.acquire(session=1), "file:///a.so?b&_modver=1.0")

    assert uri == "file:///a.so?b&_modver=1.0&_dom=cdsp&_session=1"


def test_a_signed_process_that_is_there_already_is_said_to_be_the_reason(fake):
    fake.answer("session2", 5)
    sessions = session_pool(fake.library)

    with pytest.raises(DriverError, match="signed"):
        sessions.allow_unsigned(sessions.acquire())


def test_threads_that_take_sessions_at_the_same_time_get_different_ones(fake, monkeypatch):
    def hashed(slot):
        time.sleep(0)  # another thread runs here
        return slot.session

    monkeypatch.setattr(SessionSlot, "__hash__", hashed)
    sessions = session_pool(fake.library)
    barrier = threading.Barrier(SESSIONS)

    def take():
        barrier.wait()
        return sessions.acquire()

    with ThreadPoolExecutor(SESSIONS) as threads:
        for _ in range(50):
            taken = [one.result() for one in [threads.submit(take) for _ in range(SESSIONS)]]
            assert {slot.session for slot in taken} == set(range(SESSIONS))
            for slot in taken:
                sessions.release(slot)


# --- The skel -------------------------------------------------------------------------------------


@pytest.fixture
def skels(tmp_path):
    for version in (73, 68, 81):
        (tmp_path / f"libnpurt_skel_v{version}.so").write_text(f"v{version}")
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "libother_v60.so").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("arch", "chosen"), [(68, 68), (69, 68), (73, 73), (79, 73), (81, 81), (99, 81), (None, 68)]
)
def test_the_skel_is_that_of_the_dsp_or_the_nearest_older(skels, arch, chosen):
    assert skel.choose(arch, skels).name == f"libnpurt_skel_v{chosen}.so"


def test_a_dsp_older_than_every_skel_is_refused(skels, tmp_path_factory):
    with pytest.raises(DeviceNotFound, match=r"v66.*v68"):
        skel.choose(66, skels)
    with pytest.raises(DeviceNotFound, match="is not in") as caught:
        skel.choose(68, tmp_path_factory.mktemp("empty"))
    assert "tools.build" in caught.value.remedy


def test_the_uri_names_file_and_entry_point(skels):
    uri = skel.module(skel.choose(73, skels))

    assert uri == "file:///libnpurt_skel_v73.so?npurt_skel_handle_invoke&_modver=1.0&_idlver=1.0.0"


@pytest.mark.parametrize(
    ("users", "kept"),
    [
        ({}, []),
        ({"DSP_LIBRARY_PATH": "/a;/b"}, ["/a", "/b"]),
        ({"ADSP_LIBRARY_PATH": "/c"}, ["/c"]),
        ({"DSP_LIBRARY_PATH": "/a", "ADSP_LIBRARY_PATH": "/c"}, ["/a"]),
    ],
)
def test_a_private_copy_of_the_skel_comes_first_and_goes_with_the_process(skels, users, kept):
    code = f"""
import os
from pathlib import Path
from npurt.hexagon.session import skel
skel.publish(skel.choose(73, Path({str(skels)!r})))
skel.publish(skel.choose(68, Path({str(skels)!r})))
skel.publish(skel.choose(68, Path({str(skels)!r})))
paths = os.environ["DSP_LIBRARY_PATH"].split(";")
assert os.environ["ADSP_LIBRARY_PATH"].split(";") == paths
own = Path(paths[0])
assert sorted(p.read_text() for p in own.iterdir()) == ["v68", "v73"]
assert own.stat().st_mode & 0o777 == 0o700
print(*paths, sep="\\n")
"""
    clean = dict.fromkeys(("DSP_LIBRARY_PATH", "ADSP_LIBRARY_PATH"), "")
    done = in_a_process(code, **{**clean, **users})

    assert done.returncode == 0, done.stderr
    own, *rest = done.stdout.split()
    assert rest == kept
    assert not os.path.exists(own)


NO_SPACE = {
    "full": "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))",
    "gone": "shutil.rmtree(skel._private())",
    "a file": "shutil.rmtree(skel._private()); skel._private().touch()",
}
PUBLISH_NOWHERE = """
import os, resource, shutil
from pathlib import Path
import npurt
from npurt.hexagon.session import skel

skel.publish(skel.choose(68))
{trouble}
for use in (lambda: skel.publish(skel.choose(68)), lambda: npurt.open_device("hexagon:sim")):
    try:
        use()
    except npurt.DeviceNotFound as error:
        print("TMPDIR" in error.remedy, "cannot be copied to a folder for the DSP" in error.what)
"""


@pytest.mark.parametrize("trouble", NO_SPACE.values(), ids=NO_SPACE)
def test_where_there_is_no_room_for_a_copy_a_remedy_is_given_and_nothing_left(tmp_path, trouble):
    done = in_a_process(PUBLISH_NOWHERE.format(trouble=trouble), TMPDIR=str(tmp_path))

    assert (done.stdout, done.stderr) == ("True True\n" * 2, "")
    for left in tmp_path.iterdir():
        assert left.is_file()  # the test created the file


PUBLISH_AT_ONCE = """
import os, threading
from pathlib import Path
from npurt.hexagon.session import skel

code = skel.choose(68, Path({skels!r}))
published = Path(os.environ["TMPDIR"])
barrier, wrong = threading.Barrier(4), []

def publish():
    barrier.wait()
    for _ in range(50):
        try:
            skel.publish(code)
            (found,) = published.glob(f"npurt-{{os.getpid()}}-*/*_v68.so")
            assert found.read_bytes() == code.read_bytes()
        except Exception as error:
            wrong.append(error)

threads = [threading.Thread(target=publish) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(wrong)
"""


def test_threads_and_processes_publish_at_once_and_what_is_there_is_always_whole(skels, tmp_path):
    """Each process has its own folder, below a folder that all processes clean up."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (skels / "libnpurt_skel_v68.so").write_bytes(os.urandom(1 << 17))
    code = PUBLISH_AT_ONCE.format(skels=str(skels))

    with ThreadPoolExecutor(3) as starters:
        every = list(starters.map(lambda _: in_a_process(code, TMPDIR=str(folder)), range(3)))

    assert [(done.stdout, done.stderr) for done in every] == [("[]\n", "")] * 3
    assert list(folder.iterdir()) == []


def test_a_fork_that_ends_leaves_its_parents_copy(skels):
    code = PUBLISH_AND_DIE.format(
        skels=str(skels),
        then="""
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0
    print(len(list(Path(os.environ["DSP_LIBRARY_PATH"].split(";")[0]).iterdir())))
""",
    )
    done = in_a_process(code)

    assert (done.stdout, done.stderr) == ("1\n", "")


PUBLISH_AND_DIE = """
import os, signal
from pathlib import Path
from npurt.hexagon.session import skel
skel.publish(skel.choose(68, Path({skels!r})))
{then}
"""


def test_what_a_killed_process_left_goes_a_day_later_and_what_others_use_stays(skels, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()

    def process(then=""):
        code = PUBLISH_AND_DIE.format(skels=str(skels), then=then)
        return in_a_process(code, TMPDIR=str(folder))

    process("os.kill(os.getpid(), signal.SIGKILL)")
    (left,) = folder.iterdir()
    process()
    assert list(folder.iterdir()) == [
        left
    ]  # the folder may belong to a process that has just begun
    os.utime(left, (0, 0))
    used = folder / "npurt-1-used"
    used.mkdir()
    os.utime(used, (0, 0))
    with skel.in_use(used):
        done = process()

    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == [used]


def test_names_of_calls_are_those_of_the_library():
    assert {codes.OPEN, codes.INVOKE} <= set(abi.SYMBOLS)
    assert Path(lib.simulator()).name == "libcdsprpc_sim.so"
