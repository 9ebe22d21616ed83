"""Boards with the files of Debian's packages hexagon-dsp-binaries-*, as trees of files.

Only the names are those of the packages; tests/hexagon/objects.py writes the files.  Source of the
names: linux-msm/hexagon-dsp-binaries, conf.d and config.txt.
"""

from npurt.doctor.board import TREE
from npurt.hexagon.doctor import packages, shell_names
from npurt.hexagon.session import skel
from tests.doctor import boards
from tests.hexagon.objects import shared_object

BASE = "/usr/share/hexagon-dsp"
BUILD = b"CDSP.HT.2.5.c4-00004-KODIAK-1"  # the build of the firmware of the board that works
LIBRARIES = ("libcrm_test_skel.so", "libsysmonquery_skel.so", "libc++.so.1", "version.so")
BOARDS = {board.model: board for board in packages.boards()}
Q6A, SA8797P = "Radxa Dragon Q6A", "Qualcomm Technologies, Inc. SA8797P Ride Embedded"
LEMANS = "Qualcomm Technologies, Inc. Lemans EVK"


def shell(arch, exports=None):
    """Return a shell for v*arch*, which exports the known names or *exports*."""
    names = shell_names.exported(arch) if exports is None else exports
    return shared_object(arch=arch, exports=sorted(names), tls=True) + b"=" + BUILD + b"\0"


def version_of(board):
    """Return the version of a board's DSP; 68 where it is unknown or has no unsigned shell."""
    return int(board.version[1:]) if board.version.startswith("v") else 68


def tree(
    root,
    model=Q6A,
    *,
    domain="cdsp",
    name="fastrpc_shell_unsigned_3",
    content=None,
    signed=True,
    swiv=False,
    config=None,
    compatible="",
    step=None,
    **capabilities,
):
    """Make the files of a board under *root*; return its `Machine`.

    Args:
        root: The folder.
        model: The model, with a package.
        domain: The DSP.
        name: The name of the unsigned shell, or None.
        content: The bytes of the shell; None: a shell with all known names.
        signed: Whether there is a shell for signed processes.
        swiv: Whether the libraries have a checksum section.
        config: The text of the file in conf.d; None: as packaged; "": the package is not installed.
        compatible: The names of board and chip in the device tree; "": only of the chip.
        step: Changes to the findings of the step "skel".
        capabilities: Changes to what the DSP reports.
    """
    board = BOARDS[model]
    arch = version_of(board)
    known = boards.board("working")
    for section in ("files", "builds"):
        known[section] = {k: v for k, v in known[section].items() if "/share/qcom/" not in k}
    known["domain"] = domain
    known["files"][f"{TREE}/model"] = model
    chip = board.folder.partition("/")[0]
    known["files"][f"{TREE}/compatible"] = (compatible or f"qcom,{chip}").replace("\n", "\0")
    known["trial"]["capabilities"] |= {"arch": arch, **capabilities}
    if arch >= 68:
        known["trial"]["skel"] = known["trial"]["skel"] | {"file": skel.choose(arch).name}
        known["trial"]["skel"] |= step or {}
    if config != "":
        _install(root, board, config)
        folder = f"{BASE}/{board.folder}/{domain}"
        for library in LIBRARIES:
            boards.write(root, f"{folder}/{library}", shared_object(arch=arch, swiv=swiv))
        if signed:
            boards.write(root, f"{folder}/fastrpc_shell_3", shell(arch))
        if name:
            boards.write(root, f"{folder}/{name}", shell(arch) if content is None else content)
    return boards.laid(known, root)


def _install(root, board, config):
    text = config or (
        "# SPDX-License-Identifier: MIT\n# yaml-language-server: $schema=schema.json\nmachines:\n"
        f"  {board.model}:\n    DSP_LIBRARY_PATH: {board.folder}\n"
    )
    boards.write(root, f"{BASE}/conf.d/{board.name}.yaml", text.encode())
