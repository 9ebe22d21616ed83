"""Test that every text about the needed qemu agrees with `.ci/qemu`, which installs it."""

import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
HOME = (PROJECT / ".ci/qemu").read_text()
TEXTS = [
    path
    for pattern in ("docs/**/*.md", "*.md", "sim/**/*.[ch]", "npurt/**/*.py", "tests/**/*.py")
    for path in PROJECT.glob(pattern)
    if path != Path(__file__)
]


def test_the_simulator_needs_the_version_that_the_script_installs():
    (version,) = set(re.findall(r"printf '([\d.]+)\\n", HOME))
    source = (PROJECT / "sim/fastrpc/process.c").read_text()
    major, minor = re.search(r"NEEDED_MAJOR = (\d+), NEEDED_MINOR = (\d+)", source).groups()

    assert version == f"{major}.{minor}"


def test_a_text_that_installs_qemu_names_the_backports_of_debian_12():
    assert "-t bookworm-backports qemu-user" in HOME
    assert "has version 7.2" in HOME
    wrong = []
    for path in TEXTS:
        text = path.read_text()
        joined = re.sub(r'"\s*\\?\n\s*"', "", text)  # adjacent strings of C and Python
        for found in re.finditer(r"apt(?:-get)? install qemu-user", joined):
            near = joined[found.start() - 200 : found.end() + 300]
            if "bookworm-backports" not in near and "its backports" not in near:
                wrong.append(str(path.relative_to(PROJECT)))
    assert [name for name in wrong if not name.startswith("tests/")] == []
