"""Find the files that a system has installed for its DSP: the shell, and the libraries beside it.

Sources: qualcomm/fastrpc, README, src/fastrpc_config_parser.c and #373 (the shell's name without a
number); linux-msm/hexagon-dsp-binaries, conf.d; Debian's hexagon-dsp-binaries 0~20261019-1.
"""

import re
from typing import Any

from npurt.doctor.board import TREE
from npurt.doctor.system import System
from npurt.hexagon.fastrpc.abi import CDSP
from npurt.hexagon.session import checksum

# Folders with conf.d, to which its paths are relative; the second is Debian's.
BASES = ("/usr/share/qcom", "/usr/share/hexagon-dsp")
SHELL_FOLDERS = (
    "/usr/lib/dsp",
    "/usr/lib/rfsa/adsp",
    "/vendor/dsp",
    "/vendor/lib/rfsa/adsp",
    "/dsp",
)
PATHS = ("DSP_LIBRARY_PATH", "ADSP_LIBRARY_PATH")  # the second is read if the first is not set
MAX_LIBRARIES = 64  # libraries beside a shell that are read; Debian's folders have up to 28
MAX_LINE = 1000  # characters of a line in conf.d
CHECKSUM = "checksum"  # the reader of `System.read` that tells whether a file has a checksum

_SCALAR = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^"'\s].*?)"""  # a key or a value of YAML
_LINE = re.compile(rf"( *)({_SCALAR}) *:(?: +({_SCALAR})?)?(?: +#.*)?\s*")

READERS = {CHECKSUM: lambda data: {"section": checksum.has_section(data)}}


def model(system: System) -> str:
    """Return the board's model, by which FastRPC finds its configuration."""
    return system.text(f"{TREE}/model") or system.environment("MACHINE_NAME")


def configured(system: System) -> dict[str, str]:
    """Return FastRPC's configuration for this board: DSP_LIBRARY_PATH, CDSP_ARCH."""
    found: dict[str, str] = {}
    for base in BASES:
        for name in system.names(f"{base}/conf.d"):
            if name.endswith((".yaml", ".yml")):
                text = system.text(f"{base}/conf.d/{name}") or ""
                found |= machines(text).get(model(system), {})
    return found


def machines(yaml: str) -> dict[str, dict[str, str]]:
    """Return the keys and values of each board model in a file of conf.d.

    The files are YAML of one form: the mapping "machines" has models, and each model has keys with
    values.  Other lines are ignored.
    """
    found: dict[str, dict[str, str]] = {}
    outer: list[tuple[int, str]] = []  # indentation and name of the mappings around a line
    for line in yaml.splitlines():
        match = _LINE.fullmatch(line[:MAX_LINE])
        if not match or match[2].startswith("#"):
            continue
        depth, name, value = len(match[1]), _plain(match[2]), _plain(match[3] or "")
        while outer and outer[-1][0] >= depth:
            outer.pop()
        around = [name for _, name in outer]
        outer.append((depth, name))
        if len(around) == 2 and around[0] == "machines":
            found.setdefault(around[1], {})[name] = value
    return found


def _plain(scalar: str) -> str:
    """Return the text of a scalar: without its quotes, and without blanks around a plain one."""
    if scalar.startswith("'"):
        return scalar[1:-1].replace("''", "'")
    if scalar.startswith('"'):
        return re.sub(r"\\(.)", r"\1", scalar[1:-1])
    return scalar.strip()


def folders(system: System, domain: str = "cdsp") -> list[str]:
    """Return the folders in which FastRPC looks for the shell of *domain*, in order."""
    found = []
    for name in PATHS:
        found += [item for item in system.environment(name).split(";") if item.startswith("/")]
    for board in configured(system).get("DSP_LIBRARY_PATH", "").split(";"):
        found += [f"{base}/{board}" for base in BASES if board]
    found += SHELL_FOLDERS
    return [f"{folder}{sub}" for folder in found for sub in (f"/{domain}", "")]


def shell_names(domain: str = "cdsp", kind: str = "unsigned_") -> tuple[str, str]:
    """Return the names that the shell of *domain* may have; *kind* "" gives the signed shell's."""
    prefix = f"fastrpc_shell_{kind}"
    return f"{prefix}{CDSP[domain]}", prefix.removesuffix("_")


def shell_file(system: System, domain: str = "cdsp") -> str | None:
    """Return the path of the shell of unsigned processes, or None."""
    return _first(system, domain, shell_names(domain))


def signed_shell(system: System, domain: str = "cdsp") -> str | None:
    """Return the path of the shell of signed processes, or None."""
    return _first(system, domain, shell_names(domain, ""))


def _first(system: System, domain: str, names: tuple[str, ...]) -> str | None:
    paths = (f"{folder}/{name}" for folder in folders(system, domain) for name in names)
    return next((path for path in paths if system.node(path)), None)


def libraries(system: System, shell: str) -> list[str]:
    """Return the paths of the libraries beside *shell*."""
    folder = shell.rpartition("/")[0]
    names = [name for name in system.names(folder) if ".so" in name]
    return [f"{folder}/{name}" for name in names[:MAX_LIBRARIES]]


def with_checksum(system: System, paths: list[str]) -> list[str]:
    """Return those of the libraries *paths* that have a checksum section."""
    return [path for path in paths if _truth(system.read(CHECKSUM, path))]


def checks_code(system: System) -> bool:
    """Return whether the DSP may refuse code without a checksum: its own libraries have one."""
    shells = [shell_file(system, domain) for domain in CDSP]
    return any(with_checksum(system, libraries(system, shell)) for shell in shells if shell)


def _truth(answer: dict[str, Any] | None) -> bool:
    return answer is not None and answer.get("section") is True
