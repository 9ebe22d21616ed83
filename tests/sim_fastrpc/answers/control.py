"""Scenarios of requests to sessions and handles: valid, invalid, too early and too late."""

import ctypes as ct

from tests.sim_fastrpc.answers.client import CDSP, ints, scenario, uri

# Size of the argument of each request, in bytes, by number; source: qualcomm/fastrpc inc/remote.h.
SIZES = {1: 12, 2: 8, 4: 8, 6: 4, 7: 4, 8: 8, 9: 4, 10: 8, 11: 24, 12: 8, 13: 40, 14: 24, 15: 48,
         17: 32, 18: 16}  # fmt: skip
UNTOUCHED = 77
TEXT, WORD = ct.c_char_p, ct.c_uint32


class Reserve(ct.Structure):
    _fields_ = (
        *(("domain", TEXT), ("domain_bytes", WORD), ("session", TEXT), ("session_bytes", WORD)),
        *(("effective", WORD), ("number", WORD)),
    )


class Effective(ct.Structure):
    _fields_ = (
        *(("domain", TEXT), ("domain_bytes", WORD)),
        *(("session", WORD), ("effective", WORD)),
    )


class Uri(ct.Structure):
    _fields_ = (
        *(("domain", TEXT), ("domain_bytes", WORD), ("session", WORD)),
        *(("module", TEXT), ("module_bytes", WORD), ("uri", ct.c_void_p), ("uri_bytes", WORD)),
    )


class Notify(ct.Structure):
    _fields_ = (("context", ct.c_void_p), ("domain", ct.c_int), ("call", ct.c_void_p))


def _reserve(c, name, domain=b"cdsp", own=b"x", own_bytes=1):
    data = Reserve(domain, len(domain or b"cdsp"), own, own_bytes, UNTOUCHED, UNTOUCHED)
    c.say(name, c.control(13, data), data.effective, data.number)


def _latency(c, handle, enable, nbytes=8):
    data = (WORD * 2)(enable, 100)
    if handle is None:
        return c.lib.remote_handle_control(1, data, nbytes)
    return c.lib.remote_handle64_control(handle, 1, data, nbytes)


@scenario
def requests(c):
    for request in range(21):
        data = ct.create_string_buffer(64)
        size = SIZES.get(request, 8)
        ct.memmove(data, ints(CDSP, 0), 8 if request not in (13, 14, 15, 17, 18, 11) else 0)
        if request != 7:
            c.say(f"{request}, right size", c.lib.remote_session_control(request, data, size))
        c.say(f"{request}, size + 1", c.lib.remote_session_control(request, data, size + 1))
        c.say(f"{request}, null", c.lib.remote_session_control(request, None, size))
    c.say("0xffffffff", c.lib.remote_session_control(0xFFFFFFFF, None, 0))


@scenario
def settings(c):
    for domain in (-2, -1, 0, 3, 4, 7, 11, 27, 31, 32):
        c.say(f"unsigned, domain {domain}", c.unsigned(domain))
    c.say("unsigned, 7", c.unsigned(CDSP, 7))
    data = ints(CDSP, 77)
    c.say("type after unsigned 7", c.control(10, data), data[1])
    c.unsigned(CDSP, 0)
    c.say("type after unsigned 0", c.control(10, data), data[1])
    for domain in (7, 31):
        data = ints(domain, 77)
        c.say(f"type, domain {domain}", c.control(10, data), data[1])
    priorities = [(priority, -1) for priority in (-1, 0, 1, 255, 256)]
    stacks = [(-1, stack) for stack in (16383, 16384, 8 << 20, (8 << 20) + 1)]
    for priority, stack in priorities + stacks:
        c.say(
            f"threads, priority {priority}, stack {stack}",
            c.control(1, ints(CDSP, priority, stack)),
        )
    c.say("threads, domain -1", c.control(1, ints(-1, -1, -1)))
    c.say("threads, domain 32", c.control(1, ints(32, -1, -1)))
    for relative in (-300, -1, 0, 300):
        c.say(f"relative priority {relative}", c.control(4, ints(CDSP, relative)))
    c.say("relative priority, domain 32", c.control(4, ints(32, 0)))
    for nbytes in (0, 3 << 20, (3 << 20) - 1, 200 << 20, (200 << 20) + 1):
        c.say(f"initial memory {nbytes}, signed", c.control(12, ints(CDSP, nbytes)))
    c.unsigned(CDSP)
    c.say("initial memory, unsigned", c.control(12, ints(CDSP, 4 << 20)))
    c.say("initial memory, unsigned, domain -1", c.control(12, ints(-1, 4 << 20)))
    c.say("dump", c.control(8, ints(CDSP, 1)))
    c.say("dump, domain -1", c.control(8, ints(-1, 1)))
    c.say("dump, domain 32", c.control(8, ints(32, 1)))
    c.say("close session, domain 3", c.control(7, ints(CDSP)))
    c.say("close session, domain -1", c.control(7, ints(-1)))
    c.say("status notification", c.control(11, Notify(None, CDSP, None)))


def _no_domain(c, request, data):
    """Pass an invalid domain: the library decrements a count at an arbitrary address."""
    codes = [c.control(request, data) for _ in range(3)]
    c.say(f"request {request}, three times", codes[0])
    c.say("request 10 afterwards", c.control(10, ints(CDSP, 77)))
    c.say("open afterwards", c.open(uri())[0])


@scenario
def no_domain_type(c):
    c.unsigned()
    _no_domain(c, 10, ints(32, 77))


@scenario
def no_domain_type_below(c):
    c.unsigned()
    _no_domain(c, 10, ints(-1, 77))


@scenario
def no_domain_exception(c):
    c.unsigned()
    _no_domain(c, 9, ints(32))


@scenario
def no_domain_notification(c):
    c.unsigned()
    _no_domain(c, 11, Notify(None, 32, None))


@scenario
def kill(c):
    c.say("kill, no session", c.control(6, ints(CDSP)))
    c.started()
    c.say("kill", c.control(6, ints(CDSP)))


@scenario
def names(c):
    texts = "cdsp CDSP cdsp0 cdsp1 cdsp2 cdspx cdsp&_session=1 adsp mdsp sdsp slpi gdsp0 gdsp1"
    for name in (*texts.split(), "gdsp", "dsp", "cds", ""):
        data = Effective(name.encode(), len(name), 0, 77)
        c.say(f"effective of {name!r}", c.control(14, data), data.effective)
    for length in (0, 1, 3, 5, 100):
        data = Effective(b"cdsp", length, 0, 77)
        c.say(f"effective of 'cdsp', length {length}", c.control(14, data), data.effective)
    for session in (1, 3, 4, 2**32 - 1):
        data = Effective(b"cdsp", 4, session, 77)
        c.say(f"effective of session {session}", c.control(14, data), data.effective)
    data = Effective(None, 4, 0, 77)
    c.say("effective of null", c.control(14, data), data.effective)


@scenario
def get_uri(c):
    def ask(label, module=b"m?e", length=None, room=100, session=0, domain=b"cdsp"):
        text = ct.create_string_buffer(b"@" * 200)
        data = Uri(
            domain,
            len(domain),
            session,
            module,
            len(module) if length is None else length,
            ct.addressof(text),
            room,
        )
        code = c.control(15, data)
        c.say(label, code, text.value[:60].decode())

    ask("plain")
    ask("session 3", session=3)
    ask("session 4", session=4)
    ask("room for all but the end", room=len("m?e&_dom=cdsp&_session=0"))
    ask("room for all", room=len("m?e&_dom=cdsp&_session=0") + 1)
    ask("room of 10", room=10)
    ask("room of the module", room=3)
    ask("room of 0", room=0)
    ask("module, length 1", length=1)
    ask("module, length 0", length=0)
    ask("module, length 50", length=50)
    ask("domain cdspx", domain=b"cdspx")
    ask("domain CDSP", domain=b"CDSP")
    data = Uri(b"cdsp", 4, 0, None, 3, None, 10)
    c.say("nulls", c.control(15, data))


@scenario
def reserve(c):
    for i in range(5):
        _reserve(c, f"cdsp {i}")
    for i in range(4):
        _reserve(c, f"adsp {i}", b"adsp")
    _reserve(c, "no session name", own=None, own_bytes=0)
    _reserve(c, "session name of length 0", own_bytes=0)
    _reserve(c, "no domain", None)
    _reserve(c, "cdspx", b"cdspx")
    _reserve(c, "zdsp", b"zdsp")


@scenario
def reserve_again(c):
    c.unsigned()
    for _ in range(3):
        c.control(13, Reserve(b"cdsp", 4, b"x", 1, UNTOUCHED, UNTOUCHED))
    code, handle = c.open(uri(1))
    c.say("open of session 1", code)
    c.say("its close", c.close(handle))
    _reserve(c, "reservation after it was closed")
    c.open(uri(0))
    _reserve(c, "reservation while session 0 is open")


@scenario
def unreserved(c):
    c.unsigned()
    c.say("open of session 2, not reserved", c.open(uri(2))[0])
    for i in range(3):
        _reserve(c, f"reservation {i}")


@scenario
def capabilities(c):
    for attribute in (*range(16), 128, 129, 255, 256, 257, 258, 259, 260, 2**32 - 1):
        c.say(f"attribute {attribute}", *c.info(attribute))
    for domain in (0, 1, 4, 7, 11, 31, 32, 2**32 - 1):
        c.say(f"domain {domain}, attribute 0", *c.info(0, domain))
        c.say(f"domain {domain}, attribute 6", *c.info(6, domain))
    c.say("null", c.lib.remote_handle_control(2, None, 12))
    c.say("wrong length", c.lib.remote_handle_control(2, (WORD * 3)(CDSP, 6, 0), 1))
    for request in (0, 3, 4, 5, 6, 13, 99):
        data = (WORD * 8)(1)
        c.say(
            f"handle control {request}, 4 bytes",
            c.lib.remote_handle_control(request, data, 4),
            data[0],
        )


@scenario
def latency(c):
    for enable in range(6):
        c.say(f"enable {enable}, no session", _latency(c, None, enable))
    c.say("wrong length", _latency(c, None, 1, 4))
    handle = c.started()
    for enable in range(6):
        c.say(f"enable {enable}", _latency(c, handle, enable))
    control = c.lib.remote_handle64_control
    domain = ct.c_int(UNTOUCHED)
    c.say("get domain", control(handle, 4, ct.byref(domain), 4), domain.value)
    c.say("get domain, wrong length", control(handle, 4, ct.byref(domain), 8))
    c.say("get domain, null", control(handle, 4, None, 4))
    c.say("request 3", control(handle, 3, (WORD * 1)(0), 4))
    c.say("request 99", control(handle, 99, None, 0))
