"""Checks that judge the findings of a trial of the DSP (see `trial`)."""

import re

from npurt.doctor.check import CheckResult, fail, ok, warn
from npurt.doctor.system import System
from npurt.hexagon.doctor.evidence import TRIAL, items, number, step
from npurt.hexagon.doctor.shells import version

OLDEST = 68
PACKAGES = (
    r"Package: (?:lib[ac]dsprpc1|libfastrpc1|qcom-fastrpc1|fastrpc)\n(?:[^\n]+\n)*?Version: [^\n]+"
)
INSTALL = "sudo apt install libfastrpc1 (RadxaOS: libcdsprpc1)"
REPORT = (
    "sudo journalctl -b | grep -i -e cdsprpcd -e fastrpc shows the DSP's messages; npurt doctor "
    "--bundle report.tar.gz collects the evidence for a report"
)
_HERE = re.compile("npurt doctor")  # advice to run the doctor is useless in the doctor's own output


def _trouble(system: System, *names: str) -> CheckResult | None:
    """Return the failure of the first step that failed or did not run; None if all succeeded."""
    for name in names:
        found = step(system, name)
        if "error" in found:
            remedy = str(found.get("remedy", ""))
            return fail(
                str(found["error"]), remedy if remedy and not _HERE.search(remedy) else REPORT
            )
        if not found:
            ended = system.probe(TRIAL).get("ended") or f"the step {name} did not run"
            return fail(f"the DSP does not answer: {ended}", _HANG)
    return None


_HANG = (
    "compare the builds of firmware and shell above; restart the DSP: sudo sh -c 'echo stop > "
    "/sys/class/remoteproc/remoteprocN/state; echo start > /sys/class/remoteproc/remoteprocN/state'"
)


def library(system: System) -> CheckResult:
    """Check that the system's library loads, is the only FastRPC library, and is not a stub."""
    trouble = _trouble(system, "library")
    if trouble:
        return trouble
    found = step(system, "library")
    copies = [str(path) for path in items(found, "loaded")]
    if len(copies) > 1:
        folders = system.environment("LD_LIBRARY_PATH")
        return fail(
            f"two FastRPC libraries are loaded, and the second one ends every session: "
            f"{', '.join(copies)}",
            f"take the folder of one of them out of LD_LIBRARY_PATH, which is {folders!r}",
        )
    if found.get("unsigned") == 0xFFFF_FFFF:
        return fail(
            f"{found.get('path')} is the SDK's stub and not the system's library: it refuses even "
            "a request that needs no DSP (0xffffffff)",
            f"unset LD_LIBRARY_PATH NPURT_FASTRPC_LIBRARY; {INSTALL}",
        )
    missing = ", ".join(map(str, items(found, "missing")))
    package = " ".join(system.matches("/var/lib/dpkg/status", PACKAGES) or []).split("Version: ")
    about = [str(found.get("path")), *package[1:2], f"without {missing}" if missing else ""]
    return ok(", ".join(part for part in about if part))


def capabilities(system: System) -> CheckResult:
    """Report the properties of the DSP; old firmware does not support the request."""
    trouble = _trouble(system, "capabilities")
    if trouble:
        return trouble
    found = step(system, "capabilities")
    arch = version(system)
    if found.get("arch") is None:
        known = f"; FastRPC's configuration names v{arch}" if arch else ""
        return warn(
            f"the DSP does not report its version: old firmware, or no access (#180, #267){known}",
            "update the DSP's firmware, if there is a newer one",
        )
    about = (
        f"v{arch}, {number(found, 'hvx_contexts'):g} HVX contexts, "
        f"{number(found, 'vtcm_bytes') / (1 << 20):g} MiB of VTCM"
    )
    if found.get("unsigned") is False:
        return warn(f"{about}; the DSP reports signed code only, which may be wrong (#401)")
    return ok(about)


def skel(system: System) -> CheckResult:
    """Check that npurt has code for this DSP."""
    arch = version(system)
    found = step(system, "skel")
    oldest = min((n for n in items(found, "available") if isinstance(n, int)), default=OLDEST)
    if arch is not None and arch < oldest:
        return fail(
            f"this DSP is a v{arch}, and npurt's code is for v{oldest} and newer",
            "use the CPU: npurt run -dev cpu",
        )
    trouble = _trouble(system, "skel")
    if trouble:
        return trouble
    for finding in items(found, "findings"):
        if isinstance(finding, dict) and finding.get("level") == "error":
            return fail(f"{found.get('file')}: {finding.get('what')}", str(finding.get("remedy")))
    return ok(str(found.get("file")))


def session(system: System) -> CheckResult:
    """Check that npurt's code starts on the DSP."""
    trouble = _trouble(system, "session")
    if trouble:
        return trouble
    info = step(system, "session").get("info")
    info = info if isinstance(info, dict) else {}
    power = "full clocks" if number(info, "power") else "no vote for clocks"
    took = number(step(system, "session"), "seconds") * 1000
    threads, vtcm = number(info, "threads"), number(info, "vtcm_bytes") / 1024
    return ok(f"started in {took:.0f} ms: {threads:g} threads, {vtcm:g} KiB of VTCM, {power}")


def transfer(system: System) -> CheckResult:
    """Check that calls arrive, and that copied and shared memory arrive undamaged."""
    trouble = _trouble(system, "echo", "copy", "shared")
    if trouble:
        return trouble
    echo, shared = step(system, "echo"), step(system, "shared")
    return ok(
        f"a call takes {number(echo, 'seconds') * 1e6:.0f} us; "
        f"{number(shared, 'bytes') / (1 << 20):g} MiB of shared memory arrive undamaged"
    )


def mapping(system: System) -> CheckResult:
    """Check that memory can be mapped and unmapped repeatedly."""
    cycles = number(step(system, "mapping"), "cycles")
    return _trouble(system, "mapping") or ok(f"{cycles:g} times")


def dspqueue(system: System) -> CheckResult:
    """Check whether dspqueue works: it is faster than plain calls, and many boards lack it."""
    trouble = _trouble(system, "dspqueue")
    if trouble:
        return warn(f"dspqueue does not work here, so npurt uses plain calls: {trouble.what}")
    return ok("messages are answered")
