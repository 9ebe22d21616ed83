"""Evidence in a file that can be sent: a .tar.gz with nothing in it but text.

    README.txt      what this is
    report.txt      the diagnosis, as it was printed
    evidence.json   every question that was asked, and its answer

Bundles come from strangers: nothing is unpacked to disk, and everything has a limit.
"""

import io
import json
import tarfile
import zlib
from pathlib import Path
from typing import Any

from npurt.doctor.anonymous import anonymised
from npurt.doctor.system import Evidence, wrong
from npurt.errors import NpurtError
from npurt.files import parsed, replacing

FORMAT = 1
README = """Evidence of `npurt doctor`, for those who help to find out why an NPU does not run.

evidence.json holds every file that was read and every trial that was made, and what came of it;
report.txt is what the owner saw.  Host and user names, home folders, serial numbers, network
addresses, UUIDs and mail addresses were replaced by words in capitals.  Please look through both
before you send this.

    npurt doctor --from THIS_FILE
"""
MEMBERS = ("README.txt", "report.txt", "evidence.json")
MOST_PACKED = 4 << 20  # bytes; a bundle has some 10 KiB
MOST_BYTES = 16 << 20
_GZIP = 31  # of zlib: a gzip header


def write(path: Path, evidence: Evidence, report: str, names: dict[str, str]) -> None:
    """Write a bundle, whole or not at all.

    Args:
        path: File to make or replace.
        evidence: As recorded; it is made anonymous here.
        report: The diagnosis as text; it is made anonymous too.
        names: What to replace; see `anonymous.secrets`.

    Raises:
        NpurtError: It cannot be written.
    """
    clean = anonymised({**evidence, "text report": report}, names)
    report = clean.pop("text report")
    told = {"format": FORMAT, "evidence": clean}
    texts = (README, report, json.dumps(told, indent=1, sort_keys=True))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in zip(MEMBERS, texts, strict=True):
            data = text.encode(errors="replace")
            member = tarfile.TarInfo(f"npurt-doctor/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    try:
        with replacing(path) as file:
            file.write(packed.getvalue())
    except OSError as error:
        raise NpurtError(
            f"cannot write {path}: {error.strerror}", remedy="choose another place for the bundle"
        ) from error


def read(path: Path) -> Evidence:
    """Return the evidence of a bundle.

    Raises:
        NpurtError: It cannot be read, is damaged, too large, or no bundle.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(MOST_PACKED + 1)
    except OSError as error:
        raise NpurtError(
            f"cannot read {path}: {error.strerror}", remedy="give the path of a bundle"
        ) from error
    if len(packed) > MOST_PACKED:
        raise _refused(path, f"it has more than {MOST_PACKED} bytes")
    told = _json(path, _member(path, _unpacked(path, packed)))
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise _refused(path, f"its evidence is not of format {FORMAT}")
    evidence = told.get("evidence")
    reason = wrong(evidence)
    if reason:
        raise _refused(path, f"in its evidence, {reason}")
    assert isinstance(evidence, dict)
    return evidence


def _refused(path: Path, reason: str) -> NpurtError:
    return NpurtError(
        f"{path} is no bundle that can be read: {reason}",
        remedy="ask for it again: npurt doctor --bundle FILE makes it",
    )


def _unpacked(path: Path, packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    try:
        data = unpacker.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise _refused(path, f"it is not packed with gzip, or damaged ({error})") from error
    if unpacker.unconsumed_tail:
        raise _refused(path, f"it unpacks to more than {MOST_BYTES} bytes")
    if not unpacker.eof:
        raise _refused(path, "its end is missing")
    return data


def _member(path: Path, data: bytes) -> bytes:
    """Return the evidence from a tar archive; a bundle has no other files than ours."""
    found = None
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                if folder != "npurt-doctor" or name not in MEMBERS or not member.isfile():
                    raise _refused(path, f"nothing is known of {member.name[:60]!r} in it")
                file = tar.extractfile(member)
                if name == MEMBERS[-1] and file:
                    found = file.read(MOST_BYTES)
    except (tarfile.TarError, ValueError, OverflowError, OSError) as error:
        raise _refused(path, f"its archive is damaged ({error})") from error
    if found is None:
        raise _refused(path, "it has no evidence.json")
    return found


def _json(path: Path, data: bytes) -> Any:
    try:
        return parsed(data)
    except ValueError as error:
        raise _refused(path, f"its evidence.json is damaged ({error})") from error
