"""Write and read bundles: evidence of a diagnosis in a .tar.gz of three text files.

    README.txt      an explanation of the bundle
    report.txt      the diagnosis, as it was printed
    evidence.json   every question to the machine, with its answer

Bundles come from untrusted users: reading unpacks nothing to disk, and limits all sizes.
"""

import io
import json
import tarfile
import zlib
from pathlib import Path
from typing import Any

from npurt.base.files import parsed, replacing
from npurt.doctor.anonymous import anonymised
from npurt.doctor.system import Evidence, wrong
from npurt.errors import NpurtError

FORMAT = 1
README = """Evidence of `npurt doctor`, which helps others to find out why an NPU does not run.

evidence.json has the contents of every small file that npurt read, facts about the larger ones,
such as builds and the names of functions in the DSP's files, and the results of every trial;
report.txt is the report that you saw.  Host and user names, home folders, serial numbers, network
addresses, UUIDs and mail addresses were replaced by words in capitals.  Please look through both
files before you send this bundle.

    npurt doctor --from THIS_FILE
"""
MEMBERS = ("README.txt", "report.txt", "evidence.json")
MAX_PACKED = 4 << 20  # bytes of a bundle; 10 KiB is usual
MAX_BYTES = 16 << 20  # bytes of an unpacked bundle
_GZIP = 31  # zlib's wbits for data with a gzip header


def write(path: Path, evidence: Evidence, report: str, names: dict[str, str]) -> None:
    """Write a bundle atomically.

    Args:
        path: File to make or replace.
        evidence: The recorded evidence; this function anonymises it.
        report: The diagnosis as text; this function anonymises it, too.
        names: Names to replace; see `anonymous.secrets`.

    Raises:
        NpurtError: The file cannot be written.
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
            f"cannot write {path}: {error.strerror}", remedy="choose another path for the bundle"
        ) from error


def read(path: Path) -> Evidence:
    """Return the evidence of a bundle.

    Raises:
        NpurtError: The file cannot be read, is damaged, is too large, or is not a bundle.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(MAX_PACKED + 1)
    except OSError as error:
        raise NpurtError(
            f"cannot read {path}: {error.strerror}", remedy="give the path of a bundle"
        ) from error
    if len(packed) > MAX_PACKED:
        raise _refused(path, f"it has more than {MAX_PACKED} bytes")
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
        remedy="ask for a new bundle, made by npurt doctor --bundle FILE",
    )


def _unpacked(path: Path, packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    try:
        data = unpacker.decompress(packed, MAX_BYTES)
    except zlib.error as error:
        raise _refused(path, f"it is not packed with gzip, or damaged ({error})") from error
    if unpacker.unconsumed_tail:
        raise _refused(path, f"it unpacks to more than {MAX_BYTES} bytes")
    if not unpacker.eof:
        raise _refused(path, "its end is missing")
    return data


def _member(path: Path, data: bytes) -> bytes:
    """Return evidence.json from a tar archive; refuse an archive with other files."""
    found = None
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                if folder != "npurt-doctor" or name not in MEMBERS or not member.isfile():
                    raise _refused(path, f"nothing is known of {member.name[:60]!r} in it")
                file = tar.extractfile(member)
                if name == MEMBERS[-1] and file:
                    found = file.read(MAX_BYTES)
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
