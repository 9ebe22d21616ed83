"""Test `npurt sim --path fastrpc`: it prints one line, the library's path, for scripts."""

import json
from pathlib import Path

from npurt.cli import main
from tools import build


def test_the_path_is_one_line_and_the_shell_lies_beside_it(capsys):
    build.make(build.PACKAGE, build.host(), ("fastrpc", "shell"))

    assert main(["sim", "--path", "fastrpc"]) == 0

    said = capsys.readouterr().out
    assert said.count("\n") == 1
    path = Path(said.strip())
    assert path.name == "libcdsprpc_sim.so"
    assert path.with_name("shell").exists()


def test_the_list_has_it_with_its_settings(capsys):
    assert main(["sim", "--json"]) == 0

    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["fastrpc"]["settings"] == "NPURT_SIM_FASTRPC"
