"""Test docs/boards: the doctor recognises each board, and the pages show the doctor's output."""

import json
import re
from pathlib import Path

import pytest

from npurt.cli.verbs import doctor as verb
from npurt.doctor import board, bundle
from npurt.doctor.system import Recorder, Replay
from npurt.runtime.api import doctor
from tests.doctor import boards, rockchip

FOLDER = Path(__file__).parents[2] / "docs/boards"
COMMON = FOLDER / "README.md"
PAGES = sorted(set(FOLDER.glob("*.md")) - {COMMON})
COMPATIBLE = "/sys/firmware/devicetree/base/compatible"
NAMES = [  # `compatible` of device trees in Linux, arch/arm64/boot/dts, or in the vendor's kernel
    ("dragon-q6a", "radxa,dragon-q6a\nqcom,qcm6490"),
    ("rb3gen2", "qcom,qcs6490-rb3gen2\nqcom,qcm6490"),
    ("rock-5", "radxa,rock-5a\nrockchip,rk3588s"),
    ("rock-5", "radxa,rock-5b\nrockchip,rk3588"),
    ("rock-5", "radxa,rock-5-itx\nrockchip,rk3588"),
    ("orange-pi-5", "xunlong,orangepi-5-plus\nrockchip,rk3588"),
    ("orange-pi-5", "rockchip,rk3588s-orangepi-5\nrockchip,rk3588"),  # the vendor's
    ("orange-pi-5", "rockchip,rk3588-orangepi-5-plus\nrockchip,rk3588"),  # the vendor's
    ("raspberry-pi-5", "raspberrypi,5-model-b\nbrcm,bcm2712"),
    ("snapdragon-x", "lenovo,thinkpad-t14s\nqcom,x1e78100\nqcom,x1e80100"),
    ("snapdragon-x", "hp,elitebook-x-g2q\nqcom,glymur"),
]


def evidence(names):
    return Replay({"machine": "aarch64", f"text {COMPATIBLE}": names})


@pytest.mark.parametrize(("name", "names"), NAMES)
def test_a_board_is_recognised_by_its_device_tree(name, names):
    assert board.page(evidence(names)) == f"docs/boards/{name}.md"


@pytest.mark.parametrize(
    "names",
    [
        "",
        "raspberrypi,4-model-b\nbrcm,bcm2711",
        "radxa,rock-4d\nrockchip,rk3576",
        "xunlong,orangepi-3b\nrockchip,rk3566",
        "radxa,dragon-q6a-pro\nqcom,qcm6490",
        "some,board-of-qcom,x1e80100",
    ],
)
def test_other_boards_have_no_page(names):
    assert board.page(evidence(names)) is None


def test_every_page_is_that_of_a_board():
    assert [page.stem for page in PAGES] == sorted(board.PAGES)
    assert {name for name, _ in NAMES} == set(board.PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_what_never_ran_and_leads_to_the_common_one(page):
    text = page.read_text()

    assert "has never run on" in text.split("\n\n")[1]
    assert "](README.md" in text
    assert f"]({page.name})" in COMMON.read_text()


# --- the doctor's output -------------------------------------------------------------------------


def packed(path, system):
    """Write the bundle of a board; return its path."""
    system = Recorder(system)
    doctor.examine(doctor.checklists(), system)
    bundle.write(path, system.evidence, "report", {})
    return path


def dragon(tmp_path):
    return boards.tree("working", tmp_path)


def two_builds(tmp_path):
    """Return a ThinkPad T14s with a device tree's name, which its report does not contain."""
    tree = boards.tree("t14s-two-builds", tmp_path)
    (tmp_path / COMPATIBLE.lstrip("/")).write_text("lenovo,thinkpad-t14s\0qcom,x1e80100")
    return tree


def raspberry(tmp_path):
    return evidence("raspberrypi,5-model-b\nbrcm,bcm2712")


def stock_rocket(tmp_path):
    return rockchip.Tree("stock-rocket", tmp_path)


def vendor(tmp_path):
    return rockchip.Tree("vendor", tmp_path)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("dragon-q6a", dragon),
        ("rock-5", stock_rocket),
        ("orange-pi-5", vendor),
        ("raspberry-pi-5", raspberry),
        ("snapdragon-x", two_builds),
    ],
)
def test_a_page_shows_what_the_doctor_prints(name, make, npurt, tmp_path):
    """A page has the doctor's lines in their order; "..." stands for omitted lines."""
    text = (FOLDER / f"{name}.md").read_text()
    (block,) = re.findall(r"^```text\n(hexagon\n.+?)^```", text, re.M | re.S)
    path = packed(tmp_path / "b.tar.gz", make(tmp_path / "board"))

    printed = iter(npurt("doctor", "--from", path).out.splitlines())

    shown = [line for line in block.splitlines() if line.strip() != "..."]
    assert len(shown) > 4
    assert [line for line in shown if line not in printed] == []  # `in` consumes the iterator
    assert shown[-1].endswith(f"see docs/boards/{name}.md")


def test_scripts_get_the_page_too(npurt, tmp_path):
    path = packed(tmp_path / "b.tar.gz", dragon(tmp_path / "board"))

    told = json.loads(npurt("doctor", "--from", path, "--json").out)

    assert told["page"] == "docs/boards/dragon-q6a.md"


def test_a_machine_without_a_page_is_not_sent_to_one(npurt, tmp_path):
    path = packed(tmp_path / "b.tar.gz", Replay({"machine": "x86_64"}))

    assert "docs/boards" not in npurt("doctor", "--from", path).out
    assert json.loads(npurt("doctor", "--from", path, "--json").out)["page"] is None


def test_the_line_comes_after_the_settings():
    lines = list(verb._lines([], doctor.settings(), "docs/boards/rock-5.md"))

    assert lines[0] == "settings"
    assert lines[-1].endswith("see docs/boards/rock-5.md")
