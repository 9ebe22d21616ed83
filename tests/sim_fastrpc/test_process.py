"""Test processes: none remains, no missing process is needed, and a fork starts without state."""

from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS, eventually
from tests.sim_fastrpc.programs import run, start

OPEN = """
handle = rpc.opened("probe")
other = rpc.opened("probe", rest="&_dom=cdsp&_session=1")
print(rpc.process(), rpc.process(11), flush=True)
"""


def is_running(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # a zombie remains until its adoptive parent waits for it


def assert_ends(processes):
    assert eventually(lambda: not any(map(is_running, processes))), processes


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "os._exit(0)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.abort()",
        "threading.Thread(None, rpc.call, None, (handle, SLEEP, words(9**9)), daemon=True).start()",
    ],
)
def test_no_process_outlives_the_program(simulator, skels, end):
    with start(simulator, skels, OPEN + end) as program:
        processes = [int(word) for word in program.stdout.readline().split()]
        assert len(processes) == 2
        program.wait(HANG_SECONDS)

    assert_ends(processes)


def test_the_thread_that_opened_may_end_before_the_session(simulator, skels):
    """Linux could kill the DSP's process together with the thread that started it."""
    said = run(
        simulator,
        skels,
        """
        handles = []
        thread = threading.Thread(target=lambda: handles.append(rpc.opened("probe")))
        thread.start()
        thread.join()
        time.sleep(0.05)
        print(rpc.call(handles[0], INVERT, b"ab", 2)[0])
        rpc.close(handles[0])
        """,
    )
    assert said == "0\n"


def test_closing_the_last_handle_ends_the_process(rpc):
    handle = rpc.opened("probe")
    process = rpc.process()
    assert is_running(process)
    rpc.close(handle)

    assert not is_running(process)


def test_ctrl_c_is_the_programs_alone(simulator, skels):
    """The DSP's process gets no signals of the terminal."""
    with start(
        simulator,
        skels,
        """
        signal.signal(signal.SIGINT, lambda *_: None)
        handle = rpc.opened("probe")
        os.killpg(os.getpgid(0), signal.SIGINT)
        time.sleep(0.05)
        print(rpc.call(handle, INVERT, b"ab", 2)[0])
        rpc.close(handle)
        """,
        start_new_session=True,
    ) as program:
        said, _ = program.communicate(timeout=HANG_SECONDS)
    assert said == "0\n"


def test_a_child_made_by_fork_starts_with_no_sessions_and_harms_none(simulator, skels):
    said = run(
        simulator,
        skels,
        """
        handle = rpc.opened("probe")
        child = os.fork()
        if child == 0:
            code = rpc.call(handle, INVERT, b"ab", 2)[0]
            own = rpc.opened("probe")
            good = rpc.call(own, INVERT, b"ab", 2)[0] == 0 and rpc.close(own) == 0
            os._exit(0 if code == 0x8000042C and good else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(rpc.call(handle, INVERT, b"ab", 2)[0])
        child = os.fork()
        if child == 0:
            sys.exit(0)  # with every destructor
        os.waitpid(child, 0)
        print(rpc.call(handle, INVERT, b"ab", 2)[0], rpc.close(handle))
        """,
    )
    assert said == "0\n0\n0 0\n"


def test_a_program_that_reaps_every_child_does_not_disturb(simulator, skels):
    said = run(
        simulator,
        skels,
        """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        handle = rpc.opened("probe")
        process = rpc.process()
        os.kill(process, signal.SIGKILL)
        while rpc.call(handle, INVERT, b"ab", 2)[0] == 0:
            pass
        print(rpc.call(handle, INVERT, b"ab", 2)[0], rpc.close(handle))
        handle = rpc.opened("probe")
        print(rpc.call(handle, INVERT, b"ab", 2)[0], rpc.close(handle))
        """,
    )
    assert said == "39 0\n0 0\n"  # the last close makes no call to the DSP


def test_descriptors_of_the_program_do_not_reach_the_dsp(simulator, skels):
    said = run(
        simulator,
        skels,
        """
        reader, writer = os.pipe()
        os.dup2(writer, 50, inheritable=True)
        handle = rpc.opened("probe")
        names = [os.readlink(p) for p in Path(f"/proc/{rpc.process()}/fd").iterdir()]
        print(os.readlink(f"/proc/self/fd/{writer}") in names)
        rpc.close(handle)
        """,
    )
    assert said == "False\n"


def test_nothing_leaks_in_a_hundred_sessions(simulator, skels):
    said = run(
        simulator,
        skels,
        """
        def count():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        counts = []
        for i in range(40):
            handle = rpc.opened("probe")
            block = Block(rpc, 2_000_000)
            block.map()
            rpc.call(handle, INVERT, b"x" * 200_000, 200_000)
            block.free()
            rpc.close(handle)
            counts.append(count())
        print(counts[1] == counts[-1], counts[-1], counts[1])
        """,
    )
    assert said.startswith("True"), said


# --- qemu -----------------------------------------------------------------------------------------


def opening(simulator, skels, **variables):
    """Return the output of a program that opens once and prints the code, errno and reason."""
    with start(
        simulator,
        skels,
        """
        code, _ = rpc.open("probe")
        print(hex(code), c.get_errno(), rpc.error(), flush=True)
        """,
        **variables,
    ) as program:
        said, complained = program.communicate(timeout=HANG_SECONDS)
    assert program.returncode == 0, complained
    return said, complained


def test_without_qemu_the_command_that_installs_it_is_named(simulator, skels, tmp_path):
    said, complained = opening(simulator, skels, PATH=str(tmp_path))

    assert said.startswith("0x72 2 ")
    for text in (said, complained):
        assert "qemu-hexagon is not installed" in text
        assert "apt-get install qemu-user" in text


def script(folder, text):
    path = folder / "qemu-hexagon"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo 'qemu-hexagon version 7.2.15 (Debian)'; exit 1", "version 7.2, which has no HVX"),
        ("exit 3", "does not run, or is not qemu"),
        ("echo 'qemu-hexagon version 10.0.2'; exit 1", "ended before it served"),
    ],
)
def test_a_qemu_that_cannot_serve_is_found_out(simulator, skels, tmp_path, text, reason):
    said, _ = opening(simulator, skels, NPURT_QEMU_HEXAGON=script(tmp_path, text))

    assert said.startswith("0x72 2 ")
    assert reason in said


def test_a_named_qemu_that_is_not_there_is_named(simulator, skels):
    said, _ = opening(simulator, skels, NPURT_QEMU_HEXAGON="/no/such/qemu")

    assert "NPURT_QEMU_HEXAGON=/no/such/qemu: No such file" in said


def test_the_settings_come_from_the_environment(simulator, skels):
    said = run(
        simulator,
        skels,
        """
        data = (c.c_uint32 * 3)(3, 6, 0)
        rpc.remote_handle_control(2, data, 12)
        print(hex(data[2]))
        """,
        NPURT_SIM_FASTRPC="arch=v75, log=1",
    )
    assert said == "0x75\n"


@pytest.mark.parametrize("text", ["crsh=1", "arch=v70", "crash=1 hvx=99", "delay=1:x"])
def test_a_dsp_whose_settings_are_not_understood_does_not_start(text, simulator, skels):
    """A misspelt fault would never occur, and its test would always pass."""
    said, _ = opening(simulator, skels, NPURT_SIM_FASTRPC=text)

    assert said.startswith("0x72 22 ")
    assert f"unknown setting: {text.split()[-1]}" in said
    assert "NPURT_SIM_FASTRPC" in said


def test_a_shell_that_is_missing_is_named(simulator, skels, tmp_path):
    alone = tmp_path / "librpc_alone.so"
    alone.write_bytes(simulator.read_bytes())

    said, _ = opening(alone, skels)

    assert "shell: No such file" in said
    assert "tools.build" in said
