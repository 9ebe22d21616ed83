"""Run the command blocks in the docs that call a server; `.ci/programs` installs curl."""

import subprocess
import sys

import pytest

from tests.blocks import PROJECT, blocks
from tests.limits import HANG_SECONDS
from tests.serve.live import serving

ADDRESS = "127.0.0.1:8080"
PAGES = [PROJECT / "docs/serving.md", PROJECT / "docs/server-setup.md"]


def asks(block):
    """Return whether a block only calls a server; others start a server or another program."""
    by_curl = all(line.startswith("curl ") for line in block.body.splitlines())
    return block.needs == "a server that runs" and (block.language == "python" or by_curl)


BLOCKS = [block for page in PAGES for block in blocks(page) if asks(block)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server")) as found:
        yield found


def test_there_are_such_blocks_in_each_language_and_page():
    found = {(block.page.name, block.language) for block in BLOCKS}

    assert found == {(page.name, language) for page in PAGES for language in ("python", "sh")}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_that_asks_a_server_gets_an_answer(block, server, tmp_path):
    assert ADDRESS in block.body
    body = block.body.replace(ADDRESS, server.url.removeprefix("http://"))
    command = [sys.executable, "-c", body]
    if block.language == "sh":
        command = ["bash", "-euc", body.replace("curl ", "curl --fail --silent --show-error ")]

    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
