"""Extract the code blocks of the documents and run them in order, as a reader would.

A block of Python or of the shell runs in a folder of the page.  Blocks of Python also share a
namespace.  Words on a block's opening line change this:

    ```sh needs="a board"       does not run, for this reason
    ```c title="kernel.c"       is the file of that name
    ```text                     the output of the block before; ... matches any text

In Python `# prints TEXT`, at the end of a line, states a line that the block must print.

    python -m tests.blocks docs/arrays.md   # run a page; needs no test runner
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.limits import HANG_SECONDS

PROJECT = Path(__file__).resolve().parents[1]
FOLDER = PROJECT  # base of relative paths
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<marks>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$",
    re.M | re.S,
)
MARK = re.compile(r' (\w+)="([^"]+)"')
LANGUAGES = {"python", "sh", "text", "c", "diff", "toml"}
PRINTS = "# prints "
QWEN = "tests/data/models/qwen3/qwen3-q8_0.gguf"
FILES = {  # files named in the documents, and the tiny models used for them
    "kernel_skel.so": "npurt/hexagon/skel/libnpurt_skel_v68.so",
    "text.txt": "tests/data/real/ppl_text.txt",
    "model.gguf": QWEN,
    "models/SmolLM2-135M-Instruct.Q4_1.gguf": QWEN,
    "model-f16.gguf": "tests/data/models/qwen3/qwen3-f32.gguf",
    "draft.gguf": "tests/data/models/spec/spec-draft-qwen3-q8_0.gguf",
}
# Commands available to shell blocks: none installs, downloads or needs more privileges.
TOOLS = ("bash", "cat", "cmp", "grep", "head", "ls", "mkdir", "qemu-hexagon", "sed", "sh", "tail")


@dataclass(frozen=True)
class Block:
    """A code block: its position, the options of its opening line, its text, and its error."""

    page: Path
    line: int
    language: str
    title: str
    needs: str
    body: str
    wrong: str

    @property
    def runs(self):
        return self.language in ("python", "sh") and not (self.needs or self.title)

    @property
    def place(self):
        return f"{self.page.relative_to(FOLDER)}:{self.line}"


def blocks(page):
    """Return the blocks of a document."""
    text = page.read_text()
    found = []
    for fence in FENCE.finditer(text):
        marks = dict(MARK.findall(fence["marks"]))
        line = text.count("\n", 0, fence.start()) + 1
        place = f"{page.relative_to(FOLDER)}:{line}"
        wrong = ""
        if MARK.sub("", fence["marks"]) or not marks.keys() <= {"title", "needs"}:
            wrong = f"{place}: after the language only title= and needs= may be there"
        if fence["language"] not in LANGUAGES:
            wrong = f"{place}: the language must be one of {', '.join(sorted(LANGUAGES))}"
        title, needs = marks.get("title", ""), marks.get("needs", "")
        body = textwrap.dedent(fence["body"])
        found.append(Block(page, line, fence["language"], title, needs, body, wrong))
    return found


def run(page, folder):
    """Run the blocks of a page in *folder*.

    Raises:
        AssertionError: A block failed, or its output differs from the stated output.
    """
    _furnish(folder)
    names, printed = {"__name__": "__main__"}, None
    for block in blocks(page):
        assert not block.wrong, block.wrong
        if block.title:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body)
        elif block.runs:
            python = block.language == "python"
            printed = _python(block, names) if python else _shell(block, folder)
            continue
        elif block.language == "text" and printed is not None:
            wanted = ".*?".join(map(re.escape, block.body.strip().split("...")))
            assert re.search(rf"^{wanted}$", printed.strip(), re.S | re.M), (
                f"{block.place}: the block before it printed\n{printed}"
            )
        printed = None


def _python(block, names):
    """Run a block of Python; return what it printed."""
    code = compile("\n" * block.line + block.body, str(block.page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)  # noqa: S102 - the project's own documents
    said = [line.partition(PRINTS)[2] for line in block.body.splitlines() if PRINTS in line]
    assert not said or out.getvalue().splitlines() == said, (
        f"{block.place}: printed\n{out.getvalue()}"
    )
    return out.getvalue()


def _shell(block, folder):
    """Run a block of the shell; return what it printed."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.body],
        cwd=folder,
        env={**os.environ, "PATH": str(folder / ".bin")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, (
        f'{block.place}: status {done.returncode}; a block that cannot run says needs="..."\n'
        f"{done.stdout}{done.stderr}"
    )
    return done.stdout


def _furnish(folder):
    """Put files, `npurt`, `python` and a few tools into *folder*."""
    for name, source in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(PROJECT / source, folder / name)  # a block may write there
    (folder / "prompt.txt").write_text("What is an NPU?\n")
    tools = folder / ".bin"
    tools.mkdir()
    for name in TOOLS:
        if path := shutil.which(name):
            (tools / name).symlink_to(path)
    for name, words in {"npurt": "-m npurt ", "python": "", "python3": ""}.items():
        (tools / name).write_text(f'#!{tools}/sh\nexec {sys.executable} {words}"$@"\n')
        (tools / name).chmod(0o755)


def environment(folder):
    """Return the environment variables of a page's run: no user's settings, and no hub."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NPURT_", "HF_", "COV_"))}
    cache = str(folder / ".cache")
    return {
        **kept,
        "PYTHONPATH": str(PROJECT),
        "NPURT_CACHE": cache,
        "NPURT_MODELS": str(PROJECT / "models"),  # `make models` downloads the catalogue's
        "HF_HUB_OFFLINE": "1",
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        os.environ.update(environment(Path(made)))
        os.chdir(made)
        run(PROJECT / sys.argv[1], Path(made))
