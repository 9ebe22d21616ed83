"""Test open, call, close and session requests: they return the codes of the real library."""

import ctypes as c
import errno

import pytest

from tests.sim_fastrpc.rpc import ABOUT, CDSP, KEEP, STATUS, Block, uri

UNABLE_TO_LOAD, NO_SYMBOL, INVALID_FORMAT = 0x80000406, 0x80000442, 0x80000411


def test_a_skel_is_opened_called_and_closed(rpc):
    code, handle = rpc.open("probe")

    assert code == 0
    assert rpc.call_words(handle, STATUS, 0) == (0, ())
    assert rpc.call_words(handle, STATUS, 0x1234)[0] == 0x1234
    assert rpc.close(handle) == 0


def test_the_skel_is_opened_with_the_uri_as_given(rpc, probe):
    code, answer = rpc.call(probe, ABOUT, None, 200)

    assert code == 0
    assert answer[8:].split(b"\0")[0].decode() == uri("probe")


def test_handles_do_not_fit_in_32_bits_and_are_never_used_twice(rpc):
    seen = set()
    for _ in range(3):
        handle = rpc.opened("probe")
        assert handle > 0xFFFFFFFF
        assert handle not in seen
        seen.add(handle)
        rpc.close(handle)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, 0xE),
        ("", 0xE),
        (uri("probe", rest=""), 0xE),
        (uri("probe", rest="&_dom=CDSP"), 0xE),
        (uri("probe", rest="&_dom=cdspx"), 0xE),
        (uri("probe", rest="&_dom=cdsp&_session=4"), 0xE),
        (uri("probe", rest="&_dom=cdsp&_session=x"), 0xE),
        (uri("probe", rest="&_dom=adsp"), 0x72),
        (uri("nowhere"), UNABLE_TO_LOAD),
        (uri("probe", symbol="other"), NO_SYMBOL),
        ("probe_skel.so?probe_skel_handle_invoke&_dom=cdsp", INVALID_FORMAT),
        ("file:///?x&_dom=cdsp", INVALID_FORMAT),
        ("file:///libprobe_skel.so&_dom=cdsp", INVALID_FORMAT),
    ],
)
def test_a_wrong_uri_has_its_code(rpc, text, code):
    handle = c.c_uint64(77)
    encoded = None if text is None else text.encode()

    got = rpc.remote_handle64_open(encoded, c.byref(handle)) & 0xFFFFFFFF

    assert got == code
    assert handle.value == 77


def test_a_skel_that_refuses_to_open_is_not_open(rpc):
    first = rpc.opened("weak")

    assert rpc.open("weak") == (0x1234, 0)
    assert rpc.close(first) == 0


def test_modules_are_loaded_once_and_forgotten_with_their_last_handle(rpc, probe):
    weak = rpc.opened("weak")
    again = rpc.opened("probe")
    assert rpc.call(again, ABOUT, None, 8)[1][0] == 2  # the probe was opened twice
    rpc.close(weak)
    weak = rpc.opened("weak")  # it refuses a second open, so it was loaded again

    rpc.close(weak)
    rpc.close(again)
    assert rpc.call(probe, ABOUT, None, 8)[1][:8] == b"\2\0\0\0\1\0\0\0"


# --- dead handles ---------------------------------------------------------------------------------


@pytest.mark.parametrize("handle", [0, 1, 2**64 - 1, 0x7EC012345000])
def test_a_handle_that_is_none_is_refused_when_strict_and_served_by_nobody_when_faithful(
    rpc, handle
):
    assert rpc.call_words(handle, STATUS, 5)[0] == 0x8000042C
    assert rpc.close(handle) == 0x2C

    rpc.control("faithful")
    assert rpc.call_words(handle, STATUS, 5)[0] == 0


def test_a_closed_handle_is_dead(rpc, probe):
    other = rpc.opened("probe")
    assert rpc.close(other) == 0

    assert rpc.call_words(other, STATUS, 0)[0] == 0x8000042C
    assert rpc.close(other) == 0x2C
    assert rpc.call_words(probe, STATUS, 0)[0] == 0


def test_closing_twice_ends_a_faithful_session_under_a_live_handle(rpc):
    rpc.control("faithful")
    first, second = rpc.opened("probe"), rpc.opened("probe")

    assert rpc.close(first) == 0
    assert rpc.close(first) == 0
    assert rpc.process() == -1
    assert rpc.call_words(second, STATUS, 5)[0] == 0  # no call reached the skel


@pytest.mark.parametrize(("mode", "marked"), [("strict", True), ("faithful", False)])
def test_the_last_close_tells_the_skel_only_when_strict(rpc, mode, marked):
    """The real library ends the session without a call of close."""
    rpc.control(mode)
    handle, block = rpc.opened("probe"), Block(rpc, 4096)
    block.map()
    rpc.call_words(handle, KEEP, block.fd, 4096)

    assert rpc.close(handle) == 0

    assert (block.view[0] == 0xC1) == marked
    block.free()


# --- sessions -------------------------------------------------------------------------------------


def test_a_signed_pd_is_refused_unless_the_machine_takes_it(rpc):
    rpc.ask_unsigned(enable=0)
    assert rpc.open("probe")[0] == 0x72
    assert c.get_errno() == errno.ECONNREFUSED
    assert "unsigned" in rpc.error()

    rpc.control("signed=1")
    assert rpc.close(rpc.opened("probe")) == 0


def test_the_kind_of_pd_cannot_change_while_a_session_is_open(rpc, probe):
    assert rpc.ask_unsigned(enable=0) == 5
    assert rpc.ask_unsigned(enable=1) == 0


def test_four_sessions_are_four_processes(rpc):
    handles = [rpc.opened("probe", rest=f"&_dom=cdsp&_session={i}") for i in range(4)]

    assert len({rpc.process(CDSP + 8 * i) for i in range(4)}) == 4
    assert [rpc.call(handle, ABOUT, None, 8)[1][0] for handle in handles] == [1] * 4
    for i, handle in enumerate(handles):
        domain = c.c_int()
        assert rpc.remote_handle64_control(handle, 4, c.byref(domain), 4) == 0
        assert domain.value == CDSP + 8 * i
        assert rpc.close(handle) == 0


def test_there_is_no_dsp_when_told_so(rpc):
    rpc.control("present=0")

    assert rpc.open("probe")[0] == 0x72
    assert c.get_errno() == errno.ENOENT
    assert info(rpc, 0) == (0, 1)  # its remoteproc is listed
    assert info(rpc, 6)[0] == 0x72


# --- the search path ------------------------------------------------------------------------------


def search(rpc, monkeypatch, path, variable="DSP_LIBRARY_PATH"):
    for name in ("DSP_LIBRARY_PATH", "ADSP_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, path)
    code, handle = rpc.open("probe")
    if code == 0:
        rpc.close(handle)
    return code


def test_folders_are_separated_by_semicolons_alone(rpc, skels, monkeypatch):
    assert search(rpc, monkeypatch, f"/nowhere;{skels}") == 0
    assert search(rpc, monkeypatch, f"/nowhere:{skels}") == UNABLE_TO_LOAD
    assert search(rpc, monkeypatch, str(skels), "ADSP_LIBRARY_PATH") == 0
    assert search(rpc, monkeypatch, str(skels), "CDSP_LIBRARY_PATH") == UNABLE_TO_LOAD


def test_dsp_library_path_hides_adsp_library_path(rpc, skels, monkeypatch):
    monkeypatch.setenv("ADSP_LIBRARY_PATH", str(skels))
    monkeypatch.setenv("DSP_LIBRARY_PATH", "/nowhere")

    assert rpc.open("probe")[0] == UNABLE_TO_LOAD


def test_the_folder_cdsp_goes_first_and_the_current_folder_is_searched(
    rpc, skels, monkeypatch, tmp_path
):
    (tmp_path / "cdsp").mkdir()
    (tmp_path / "cdsp/libprobe_skel.so").write_bytes((skels / "libprobe_skel.so").read_bytes())
    (tmp_path / "libprobe_skel.so").write_bytes(b"not a skel")
    assert search(rpc, monkeypatch, str(tmp_path)) == 0

    monkeypatch.chdir(skels)
    assert search(rpc, monkeypatch, "/nowhere") == 0


# --- requests -------------------------------------------------------------------------------------


def info(rpc, attribute, domain=CDSP):
    """Return (code, value) of a capability."""
    data = (c.c_uint32 * 3)(domain, attribute, 99)
    code = rpc.remote_handle_control(2, data, 12)
    return code & 0xFFFFFFFF, data[2]


@pytest.mark.parametrize(
    ("arch", "hvx", "vtcm"),
    [("v68", 4, 2 << 20), ("v69", 4, 8 << 20), ("v73", 4, 8 << 20), ("v79", 6, 8 << 20),
     ("v81", 8, 8 << 20)],
)  # fmt: skip
def test_capabilities_are_those_of_the_arch(rpc, arch, hvx, vtcm):
    rpc.control(f"arch={arch}")

    assert info(rpc, 0) == (0, 1)
    assert info(rpc, 1) == (0, 1)
    assert info(rpc, 3) == (0, hvx)
    assert info(rpc, 4)[1] * info(rpc, 5)[1] == vtcm
    assert info(rpc, 6) == (0, int(arch[1:], 16))
    assert [info(rpc, attribute) for attribute in (7, 8, 128, 130, 256, 259)] == [(0, 0)] * 6
    assert info(rpc, 260)[0] == 0xE
    assert info(rpc, 6, domain=0)[0] == 0x72


def test_unsigned_support_may_read_0_though_it_works(rpc):
    rpc.control("unsigned=0")

    assert info(rpc, 1) == (0, 0)
    assert rpc.close(rpc.opened("probe")) == 0


@pytest.mark.parametrize(
    ("request_id", "values", "code"),
    [
        (1, (CDSP, -1, 16384), 0),
        (1, (CDSP, 0, 16384), 0xE),
        (1, (CDSP, 256, -1), 0xE),
        (1, (CDSP, 100, 1000), 0xE),
        (4, (CDSP, 3), 0),
        (6, (CDSP,), 0x200),
        (8, (CDSP, 1), 0),
        (11, (0,) * 6, 0x14),
        (12, (CDSP, 4 << 20), 0x14),
        (16, (0,), 0x14),
        (99, (0,), 0x14),
        (2, (CDSP,), 0xE),
        (2, (99, 1), 0xE),
    ],
)
def test_session_requests_answer_as_the_real_library_does(rpc, request_id, values, code):
    data = (c.c_int * len(values))(*values)

    assert rpc.remote_session_control(request_id, data, c.sizeof(data)) == code


class Reserve(c.Structure):
    _fields_ = (
        ("domain", c.c_char_p),
        ("domain_bytes", c.c_uint32),
        ("name", c.c_char_p),
        ("name_bytes", c.c_uint32),
        ("effective", c.c_uint32),
        ("session", c.c_uint32),
    )


class GetUri(c.Structure):
    _fields_ = (("domain", c.c_char_p), ("domain_bytes", c.c_uint32), ("session", c.c_uint32),
                ("module", c.c_char_p), ("module_bytes", c.c_uint32), ("uri", c.c_char_p),
                ("uri_bytes", c.c_uint32))  # fmt: skip


def test_three_more_sessions_can_be_reserved(simulator, skels, tmp_path):
    """The test needs a separate process, because reserved sessions are never released."""
    from tests.sim_fastrpc.programs import run

    said = run(
        simulator,
        skels,
        """
        from tests.sim_fastrpc.test_session import Reserve
        for _ in range(4):
            r = Reserve(b"cdsp", 4, b"x", 1)
            print(rpc.remote_session_control(13, c.byref(r), 40), r.session, r.effective)
        """,
    )
    assert said.split("\n")[:4] == ["0 1 11", "0 2 19", "0 3 27", f"{0x8A} 4 32"]


def test_a_uri_is_completed_with_domain_and_session(rpc):
    buffer = c.create_string_buffer(100)
    asked = GetUri(b"cdsp", 4, 2, b"file:///x?y", 11, c.addressof(buffer), 100)
    assert rpc.remote_session_control(15, c.byref(asked), 48) == 0
    assert buffer.value == b"file:///x?y&_dom=cdsp&_session=2"

    asked.uri_bytes = 20
    assert rpc.remote_session_control(15, c.byref(asked), 48) == 0x4D


def test_closing_a_session_under_a_handle_is_refused(rpc, probe):
    """The real library crashes in this case."""
    domain = c.c_int(CDSP)

    assert rpc.remote_session_control(7, c.byref(domain), 4) == 0xD
    assert rpc.call_words(probe, STATUS, 0)[0] == 0


def test_latency_modes_without_polling_are_accepted(rpc, probe):
    codes = [
        rpc.remote_handle64_control(probe, 1, (c.c_uint32 * 2)(mode, 100), 8) for mode in range(4)
    ]

    assert codes == [0x14, 0, 0, 0x14]  # the first request disables polling again


def test_settings_that_mean_nothing_are_refused_and_change_nothing(rpc):
    for text in ("arch=v77", "arch=68", "hvx", "vtcm=-1", "space=4G", "crash=x", "crash=1:z",
                 "present=2", "nonsense", "arch=v73,nonsense", "x" * 500):  # fmt: skip
        assert rpc.npurt_sim_control(text.encode()) == 0xE, text
    assert info(rpc, 6) == (0, 0x68)
