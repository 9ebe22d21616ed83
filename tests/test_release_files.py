"""Test workflows, report templates and the container: everything that they name exists."""

import importlib.util
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import npurt
from npurt.cli import parser
from tests.blocks import blocks

PROJECT = Path(__file__).resolve().parents[1]
CONTAINER = PROJECT / "container"
WORKFLOWS = sorted((PROJECT / ".github/workflows").glob("*.yml"))
TEMPLATES = sorted((PROJECT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
BOARDS = PROJECT / "docs/boards/README.md"


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


DOCKER = module(CONTAINER / "try.py")
STEPS = DOCKER.instructions((CONTAINER / "Dockerfile").read_text())


def steps(workflow):
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_a_developer_can_run(workflow):
    commands = "\n".join(step.get("run", "") for step in steps(workflow))
    targets = re.findall(r"^(\w+):", (PROJECT / "Makefile").read_text(), flags=re.M)

    scripts = re.findall(r"^\.ci/\w+", commands, flags=re.M)
    made = re.findall(r"^make (\w+)", commands, flags=re.M)
    assert scripts
    assert made == ["wheels"]
    assert all((PROJECT / script).stat().st_mode & 0o100 for script in scripts)
    assert set(made) <= set(targets)


def test_publishing_trusts_the_workflow_and_knows_no_secret():
    release = (PROJECT / ".github/workflows/release.yml").read_text()
    publish = yaml.safe_load(release)["jobs"]["publish"]

    assert publish["permissions"] == {"id-token": "write"}
    assert (publish["needs"], publish["environment"]) == ("build", "release")
    assert "secrets." not in release
    assert yaml.safe_load(release)[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true


def test_a_release_needs_its_tag_its_version_and_its_changelog_to_agree(tmp_path):
    (check,) = (s["run"] for s in steps(PROJECT / ".github/workflows/release.yml") if "name" in s)
    changelog = (PROJECT / "CHANGELOG.md").read_text().replace(" (not yet released)", "", 1)
    (tmp_path / "npurt").mkdir()
    (tmp_path / "npurt/version.py").write_text((PROJECT / "npurt/version.py").read_text())

    def status(tag, log):
        (tmp_path / "CHANGELOG.md").write_text(log)
        command = ["bash", "-eo", "pipefail", "-c", check]  # as GitHub runs it
        return subprocess.run(command, cwd=tmp_path, env={"GITHUB_REF_NAME": tag}).returncode

    tag = f"v{npurt.__version__}"
    assert status(tag, changelog) == 0
    assert status(f"{tag}1", changelog) == 1
    assert status(tag, changelog.replace(f"## {npurt.__version__}", "## Unreleased")) == 1


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_asks_for_what_a_form_can_hold(template):
    """Source: GitHub's "Syntax for GitHub's form schema"."""
    form = yaml.safe_load(template.read_text())
    inputs = [part for part in form["body"] if part["type"] != "markdown"]

    assert {"name", "description", "body"} <= {*form}
    assert {part["type"] for part in inputs} <= {"input", "textarea", "dropdown", "checkboxes"}
    assert len({part["id"] for part in inputs}) == len(inputs)
    assert all(part["attributes"]["label"] for part in inputs)
    assert any(part.get("validations", {}).get("required") for part in inputs)


def test_a_text_that_is_to_be_compared_with_the_simulators_is_not_drawn():
    (form,) = (yaml.safe_load(path.read_text()) for path in TEMPLATES if path.stem == "board")
    labels = [part["attributes"].get("label", "") for part in form["body"]]
    (command,) = [label.split("`")[1] for label in labels if "npurt run" in label]

    assert parser().parse_args(shlex.split(command)[1:]).temperature == 0


# --- the container -------------------------------------------------------------------------------


def test_the_dockerfile_copies_what_is_there_and_ends_as_a_user_without_rights():
    copied = [rest.split()[:-1] for word, rest in STEPS if word == "COPY" and "--from" not in rest]
    names = {name for sources in copied for name in sources} - {"dist*"}

    assert {"pyproject.toml", "npurt", "dsp", "idl", "sim"} < names
    assert all((PROJECT / name).exists() for name in names)
    last = [word for word, _ in STEPS].index("USER")
    assert STEPS[last][1] not in ("root", "0")
    assert not [rest for word, rest in STEPS[last:] if word in ("RUN", "COPY")]
    assert ("ENTRYPOINT", '["npurt"]') in STEPS


def test_the_dockerfile_and_the_page_of_boards_give_a_container_the_same_nodes():
    head = (CONTAINER / "Dockerfile").read_text().partition("\nARG")[0]
    nodes = re.compile(r"--device (/\S+)|stat -c %g (\S+?)\)|(-v /\S+)")

    def named(text):
        return {each for found in nodes.findall(text) for each in found if each}

    assert {"/dev/accel/accel0", "/dev/fastrpc-cdsp", "/dev/dma_heap/system"} < named(head)
    assert named(head) == {name for name in named(BOARDS.read_text()) if "renderD" not in name}


def test_the_page_of_boards_has_the_udev_rules():
    rules = (CONTAINER / "70-npurt.rules").read_text().splitlines()
    rules = [line for line in rules if not line.startswith("#")]
    page = re.search(r"70-npurt\.rules <<'END'\n(.*?)END", BOARDS.read_text(), flags=re.S)

    assert page
    assert page[1].splitlines() == rules
    assert all(re.fullmatch(r'(\w+==?"[^"]+"(, |$))+', rule) for rule in rules)


def test_copy_puts_files_and_folders_where_docker_does(tmp_path):
    """COPY of a folder copies its content; a destination that ends in "/" is a folder."""
    context, root = tmp_path / "context", tmp_path / "root"
    (context / "a/b").mkdir(parents=True)
    (context / "a/b/c").write_text("c")
    (context / "d").write_text("d")
    stage = DOCKER.Stage(root, folder="/src")

    stage.copy(["a", "a"], context)
    stage.copy(["d", "dist*", "dist/"], context)
    stage.copy(["/a/b", "/opt/x"], context)

    made = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert made == {"src/a/b/c", "src/dist/d", "opt/x/c"}


def test_instructions_are_whole_lines():
    assert DOCKER.instructions("# a\nFROM x AS y\n\nRUN a && \\\n  b\n") == [
        ("FROM", "x AS y"),
        ("RUN", "a &&    b"),
    ]


def test_systemd_knows_every_line_of_the_unit(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.fail("there is no systemd-analyze: run .ci/programs")
    bodies = [block.body for block in blocks(PROJECT / "docs/server-setup.md")]
    (unit,) = (body for body in bodies if "[Service]" in body)
    path = tmp_path / "npurt.service"
    path.write_text(unit.replace("/opt/npurt/bin/npurt", "/bin/true"))  # an existing program

    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_what_ci_runs_comes_from_package_registries_alone():
    """No recipe takes a repository of others: docs/decisions/041."""
    files = [PROJECT / "Makefile", *(PROJECT / ".ci").iterdir(), *(PROJECT / "tests").rglob("*.py")]
    recipe = re.compile(r"git\W[^\n]*\b(?:clone|fetch)" + r"\b")

    assert recipe.search('git = ("git", "-C", into)\nrun(*git, "fetch", "-q", url)')
    assert [path for path in files if recipe.search(path.read_text())] == [Path(__file__)]
