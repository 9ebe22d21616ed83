"""Test the comparison of npurt's code with the files that Debian's packages install for the DSP."""

import json

import pytest

from npurt.doctor import bundle
from npurt.doctor.anonymous import anonymised
from npurt.doctor.check import diagnose, start_here
from npurt.doctor.system import Recorder, Replay, wrong
from npurt.hexagon.doctor import checks, elf, shell_names
from npurt.hexagon.session import installed, skel
from tests.doctor import boards, debian

SKEL = elf.read(skel.choose(68).read_bytes())
STRONG = sorted(name for name, weak in SKEL.imports.items() if not weak)
WEAK = sorted(name for name, weak in SKEL.imports.items() if weak)
SHELL = f"{debian.BASE}/qcs6490/radxa/dragon-q6a/dsp/cdsp/fastrpc_shell_unsigned_3"


def examined(system):
    recorder = Recorder(system)
    findings = diagnose(checks.CHECKS, recorder)
    return {f.check.name: f.result for f in findings}, start_here(findings), recorder.evidence


def without(*names, arch=68):
    return debian.shell(arch, shell_names.exported(arch) - set(names))


# --- every board with a package ------------------------------------------------------------------


@pytest.mark.parametrize("model", debian.BOARDS)
def test_every_packaged_board_gets_its_diagnosis(model, tmp_path):
    board = debian.BOARDS[model]
    none = board.version == "-"
    layout = {"name": None} if none else {}
    if model == debian.SA8797P:
        layout = {"name": "fastrpc_shell_unsigned", "swiv": True, "step": {"checksum": True}}
    results, first, _ = examined(debian.tree(tmp_path, model, **layout))

    if none:
        assert first.check.name == "shell"
        assert "no shell for unsigned code on a CDSP exists" in first.result.what
        assert "npurt run -dev cpu" in first.result.command
        return
    expected = layout.get("name", "fastrpc_shell_unsigned_3")
    assert results["shell"].what == f"{debian.BASE}/{board.folder}/cdsp/{expected}"
    assert results["build"].state == "ok"
    if board.version == "v66":
        assert first.check.name == "skel"
        assert "this DSP is a v66" in first.result.what
        return
    assert first is None, first
    arch = debian.version_of(board)
    assert results["capabilities"].what.startswith(f"v{arch}, ")
    assert results["imports"].what.endswith(f"(v{arch}) has all {len(SKEL.imports)} names")
    assert results["checksum"].state == "ok"


def test_there_are_all_versions_and_makers():
    versions = {board.version for board in debian.BOARDS.values()}
    makers = {board.folder.split("/")[1] for board in debian.BOARDS.values()}

    assert versions == {"-", "?", "v66", "v68", "v73", "v75", "v79", "v81", "v85"}
    assert makers == {"Arduino", "Qualcomm", "Thundercomm", "radxa"}
    assert len(debian.BOARDS) >= 38
    assert all(board.folder.endswith("/dsp") for board in debian.BOARDS.values())


@pytest.mark.parametrize(
    ("compatible", "chip"),
    [
        ("arduino,imola\nqcom,qrb2210\nqcom,qcm2290", "qcm2290"),
        ("qcom,qrb2210-rb1\nqcom,qrb2210\nqcom,qcm2290", "qcm2290"),
        ("thundercomm,db845c\nqcom,sdm845", "sdm845"),
        ("lenovo,yoga-c630\nqcom,sdm850\nqcom,sdm845", "sdm845"),
        ("qcom,apq8096-db820c\nqcom,msm8996", "apq8096"),
    ],
)
def test_a_chip_without_an_unsigned_shell_is_known_by_its_device_tree(compatible, chip, tmp_path):
    tree = debian.tree(tmp_path, config="", compatible=compatible)
    (tmp_path / "sys/firmware/devicetree/base/model").write_text("a board without a package")

    _, first, _ = examined(tree)

    assert first.check.name == "shell"
    assert "no shell for unsigned code on a CDSP exists" in first.result.what, chip


def test_a_chip_without_a_cdsp_is_not_sent_to_the_kernel(tmp_path):
    """An RB1 has an ADSP alone, so no remote processor is called cdsp."""
    tree = debian.tree(tmp_path, "Qualcomm Technologies, Inc. Robotics RB1", name=None)
    (tmp_path / "sys/class/remoteproc/remoteproc1/name").write_text("other")

    _, first, _ = examined(tree)

    assert first.check.name == "remoteproc"
    assert "no shell for unsigned code on a CDSP exists" in first.result.what


# --- where the shell is --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "Radxa Dragon Q6A:",
        "Radxa Dragon Q6A :",  # as in the file for "Eliza CQS EVK"
        '"Radxa Dragon Q6A":',
        "'Radxa Dragon Q6A' :   # a comment",
    ],
)
def test_a_model_is_found_however_yaml_writes_it(key, tmp_path):
    config = f"---\nmachines:\n  Other:\n    DSP_LIBRARY_PATH: x/y/dsp\n  {key}\n    # a comment\n"
    config += '\n    DSP_LIBRARY_PATH: "qcs6490/radxa/dragon-q6a/dsp"\n    CDSP_ARCH: v68\n'

    results, first, _ = examined(debian.tree(tmp_path, config=config))

    assert results["shell"].what == SHELL
    assert first is None


def test_yaml_of_other_forms_gives_nothing():
    for text in (
        "", "a", "machines", "machines: 1", "- machines:\n    - x", ":", "machines:\nx:\n  y: z",
        "other:\n  Board:\n    key: value", "machines:\n\tBoard:\n\t\tkey: value", "x: " * 30_000,
        "'" * 60_000, '"' + "\\" * 60_000, "machines:\n  B:\n    a:\n      key: value",
    ):  # fmt: skip
        assert not [keys for keys in installed.machines(text).values() if "key" in keys], text[:40]


def test_a_value_of_yaml_may_hold_signs():
    text = (
        "machines:\n  A: B (C-1) #x:\n  D#E:\n    a: 'it''s' # why\n    b: \"x\\\"y\"\n    c: p#q\n"
    )

    assert installed.machines(text)["D#E"] == {"a": "it's", "b": 'x"y', "c": "p#q"}


def test_several_folders_are_searched_in_their_order(tmp_path):
    config = "machines:\n  Radxa Dragon Q6A:\n    DSP_LIBRARY_PATH: first/dsp;"
    tree = debian.tree(tmp_path, config=f"{config}qcs6490/radxa/dragon-q6a/dsp\n")
    results, _, _ = examined(tree)
    boards.write(tmp_path, f"{debian.BASE}/first/dsp/fastrpc_shell_unsigned_3", debian.shell(68))

    assert results["shell"].what == SHELL
    assert examined(tree)[0]["shell"].what == (f"{debian.BASE}/first/dsp/fastrpc_shell_unsigned_3")


def test_a_link_to_the_files_of_another_board_is_followed(tmp_path):
    """RUBIK Pi 3 has the CDSP's files of RB3 Gen 2."""
    tree = debian.tree(tmp_path, "Thundercomm RUBIK Pi 3")
    own = tmp_path / f"usr/share/hexagon-dsp/{debian.BOARDS['Thundercomm RUBIK Pi 3'].folder}"
    other = own.parents[2] / "qcm6490/Thundercomm/RB3gen2/dsp"
    other.parent.mkdir(parents=True)
    (own / "cdsp").rename(other)
    (own / "cdsp").symlink_to(other)

    results, first, _ = examined(tree)

    assert first is None
    assert results["imports"].state == "ok"


def test_the_second_dsp_has_its_own_folder_and_shell(tmp_path):
    tree = debian.tree(tmp_path, debian.LEMANS, domain="cdsp1", name="fastrpc_shell_unsigned_4")
    results, first, _ = examined(tree)

    assert first is None
    assert results["shell"].what.endswith("/dsp/cdsp1/fastrpc_shell_unsigned_4")


def test_a_board_is_told_which_package_to_install(tmp_path):
    _, first, _ = examined(debian.tree(tmp_path, config=""))

    assert first.check.name == "shell"
    assert (
        "sudo apt install hexagon-dsp-binaries-radxa-dragon-q6a firmware-qcom-dsp"
        in first.result.command
    )
    assert "both of one version" in first.result.command


def test_two_builds_are_mended_by_both_packages(tmp_path):
    content = debian.shell(68).replace(b"00004", b"00009")

    _, first, _ = examined(debian.tree(tmp_path, content=content))

    assert first.check.name == "build"
    assert (
        "sudo apt install hexagon-dsp-binaries-radxa-dragon-q6a firmware-qcom-dsp, both of one"
        in first.result.command
    )


def test_another_board_with_a_known_chip_is_told_of_the_packages_for_it(tmp_path):
    compatible = "lenovo,thinkpad-t14s\nqcom,x1e78100\nqcom,x1e80100"
    tree = debian.tree(tmp_path, config="", compatible=compatible)
    (tmp_path / "sys/firmware/devicetree/base/model").write_text("Lenovo ThinkPad T14s Gen 6")

    _, first, _ = examined(tree)

    assert "hexagon-dsp-binaries-qualcomm-hamoa-iot-evk" in first.result.command
    assert "same release as its firmware" in first.result.command


def test_files_with_a_signed_shell_alone_are_told_apart(tmp_path):
    _, first, _ = examined(debian.tree(tmp_path, name=None))

    assert first.check.name == "shell"
    assert "/cdsp/fastrpc_shell_3, which starts signed code only" in first.result.what
    assert "hexagon-dsp-binaries-radxa-dragon-q6a" in first.result.command


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRONG)
def test_a_shell_without_a_required_name_is_the_cause(name, tmp_path):
    _, first, _ = examined(debian.tree(tmp_path, content=without(name)))

    assert first.check.name == "imports"
    assert f"{SHELL} (v68) has no {name}, which libnpurt_skel_v68.so needs" in first.result.what
    assert "0x80000406" in first.result.what
    assert "hexagon-dsp-binaries-radxa-dragon-q6a" in first.result.command


def test_a_shell_without_optional_names_is_a_warning(tmp_path):
    results, first, _ = examined(debian.tree(tmp_path, content=without(*WEAK)))

    assert first is None
    assert results["imports"].state == "warn"
    assert all(name in results["imports"].what for name in WEAK)


def test_a_shell_that_is_older_than_the_skel_is_the_cause(tmp_path):
    """The files of another board are installed."""
    tree = debian.tree(tmp_path, debian.LEMANS, content=debian.shell(68))

    _, first, _ = examined(tree)

    assert first.check.name == "imports"
    assert "libnpurt_skel_v73.so is for v73 and newer" in first.result.what
    assert "(v68) would not load it (0x80000406)" in first.result.what


def test_a_shell_for_a_newer_dsp_is_that_of_another_board(tmp_path):
    _, first, _ = examined(debian.tree(tmp_path, content=debian.shell(73)))

    assert first.check.name == "imports"
    assert "(v73) is of another board: this DSP is a v68" in first.result.what


@pytest.mark.parametrize("content", [b"", b"no ELF", debian.shell(68)[:5000]])
def test_a_shell_that_cannot_be_read_is_replaced_by_the_list(content, tmp_path):
    """The files then lack their build, too, so that check is skipped."""
    results, first, _ = examined(debian.tree(tmp_path, content=content))

    assert first is None
    assert results["imports"].what == f"the known shell of a v68 has all {len(SKEL.imports)} names"


def test_the_list_names_what_it_lacks(tmp_path):
    step = {"imports": [*STRONG, "qurt_sem_up"]}
    _, first, _ = examined(debian.tree(tmp_path, content=b"no ELF", step=step))

    assert first.check.name == "imports"
    assert "the known shell of a v68 has no qurt_sem_up" in first.result.what


def test_a_dsp_that_does_not_report_its_version_has_that_of_its_shell(tmp_path):
    results, first, _ = examined(debian.tree(tmp_path, arch=None))

    assert first is None
    assert "v68" in results["capabilities"].what


def test_a_version_above_all_others_is_known(tmp_path):
    results, first, _ = examined(debian.tree(tmp_path, "Qualcomm Technologies, Inc. Maili MTP"))

    assert first is None
    assert "(v85) has all" in results["imports"].what
    assert results["skel"].what == "libnpurt_skel_v81.so"


def test_evidence_of_an_older_npurt_is_not_judged(tmp_path):
    tree = debian.tree(tmp_path, step={"imports": None, "arch": None})
    results, first, _ = examined(tree)

    assert first is None
    assert results["imports"].state == "skip"


# --- checksums -----------------------------------------------------------------------------------


def test_libraries_with_a_checksum_and_code_without_one_are_the_cause(tmp_path):
    tree = debian.tree(tmp_path, debian.SA8797P, name="fastrpc_shell_unsigned", swiv=True)
    _, first, _ = examined(tree)

    assert first.check.name == "checksum"
    assert "4 of 4 libraries beside the shell have a checksum section" in first.result.what
    assert "section header for CRC segment not found" in first.result.what
    assert "npurt skel checksum FILE -o FILE" in first.result.command


def test_code_that_has_one_too_is_fine(tmp_path):
    tree = debian.tree(
        tmp_path, debian.SA8797P, name="fastrpc_shell_unsigned", swiv=True, step={"checksum": True}
    )
    results, first, _ = examined(tree)

    assert first is None
    assert results["checksum"].what.endswith("and so has npurt's code")


def test_npurt_adds_the_section_on_such_a_board(tmp_path):
    plain, swiv = debian.tree(tmp_path / "a"), debian.tree(tmp_path / "b", swiv=True)

    assert not installed.checks_code(plain)
    assert installed.checks_code(swiv)


# --- bundles -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [{}, {"content": without(STRONG[0])}, {"swiv": True}])
def test_the_evidence_alone_gives_the_same_diagnosis(layout, tmp_path):
    results, first, evidence = examined(debian.tree(tmp_path, **layout))
    path = tmp_path / "report.tar.gz"
    bundle.write(path, evidence, "report", {"thread": "HOST", "board": STRONG[0]})
    recorded = bundle.read(path)

    assert wrong(recorded) is None
    again, first_again, _ = examined(Replay(json.loads(json.dumps(evidence))))
    assert again == results
    anonymous, first_anonymous, _ = examined(Replay(recorded))
    assert {k: v.state for k, v in anonymous.items()} == {k: v.state for k, v in results.items()}
    for other in (first_again, first_anonymous):
        assert (other and other.check.name) == (first and first.check.name)


def test_a_name_of_the_machine_that_is_a_symbol_too_does_no_harm(tmp_path):
    """Names are replaced in the evidence of both files alike."""
    _, _, evidence = examined(debian.tree(tmp_path))

    for name in ("free", "mmap", "qurt"):
        results, first, _ = examined(Replay(anonymised(evidence, {name: "HOST"})))
        assert first is None
        assert results["imports"].state == "ok"


def test_evidence_has_names_and_no_content_of_the_vendors_files(tmp_path):
    secret = b"content of a vendor's file"
    tree = debian.tree(tmp_path, content=debian.shell(68) + secret)
    _, _, evidence = examined(tree)

    assert secret.decode() not in json.dumps(evidence)
    shell = evidence[f"read exports {SHELL}"]
    assert shell.keys() == {"arch", "names"}
    assert set(shell["names"]) >= set(STRONG)


@pytest.mark.parametrize(
    "answer",
    [{}, {"arch": "v68"}, {"arch": 68, "names": 5}, {"names": [5], "arch": 68}, {"error": "x"}],
)
def test_evidence_that_a_stranger_made_up_is_judged_without_harm(answer, tmp_path):
    _, _, evidence = examined(debian.tree(tmp_path))
    evidence[f"read exports {SHELL}"] = answer
    evidence["probe hexagon"]["domain"] = ["cdsp"]
    assert wrong(evidence) is None

    results, _, _ = examined(Replay(evidence))

    assert results["imports"].what.startswith("the known shell of a v68")
