"""Run the steps of the Dockerfile in folders, on machines that cannot pull images.

    python container/try.py ROOT WORK -- COMMAND ...

ROOT is a root file system in place of the base image, for example from debootstrap. WORK is an
empty folder for the stages. COMMAND runs in the last stage, as the stage's user. The script needs
root rights, implements only the instructions that the Dockerfile uses, and isolates the stages by
chroot and mounts. It passes PIP_* variables of the environment to the steps.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile as pairs of keyword and arguments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    parts = (each.partition(" ") for each in joined.splitlines())
    return [(word, rest.strip()) for word, _, rest in parts]


@dataclass
class Stage:
    """A stage of the build: its root folder, and the state that its instructions have set."""

    root: Path
    folder: str = "/"
    user: str = "root"
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": PATH, "HOME": "/root"})
    entry: list[str] = field(default_factory=list)

    def run(self, *command: str) -> int:
        """Run *command* in the root; return its exit status."""
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        cd = f"cd {shlex.quote(self.folder)} && exec {shlex.join(command)}"
        user = [] if self.user == "root" else [f"--userspec={self.user}:"]
        mounts = " && ".join(
            f'mount --rbind /{name} "$0/{name}"' for name in ("proc", "sys", "dev")
        )
        inside = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec chroot "$@"', self.root]
        return subprocess.run(
            [*inside, *user, self.root, "/bin/sh", "-c", cd],
            env={"DEBIAN_FRONTEND": "noninteractive", **pip, **self.variables},
        ).returncode

    def copy(self, words: list[str], context: Path) -> None:
        """Copy files of *context* as COPY does: of a folder, its content."""
        *sources, target = words
        into = self.root / os.path.join(self.folder, target).lstrip("/")
        for pattern in sources:
            for source in sorted(context.glob(pattern.lstrip("/"))):
                out = into / source.name if target.endswith("/") and source.is_file() else into
                out.parent.mkdir(parents=True, exist_ok=True)
                what = f"{source}/." if source.is_dir() else str(source)
                if source.is_dir():
                    out.mkdir(exist_ok=True)
                subprocess.run(["cp", "-a", what, out], check=True)


def build(text: str, base: Path, work: Path) -> Stage:
    """Run the instructions of the Dockerfile *text*; return its last stage."""
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    stage = None
    for word, rest in instructions(text):
        print(f"== {word} {rest}", flush=True)
        filled = re.sub(r"\$\{(\w+)\}", lambda found: arguments.get(found[1], found[0]), rest)
        if word == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value.strip('"')
        elif word == "FROM":
            name = rest.partition(" AS ")[2] or str(len(stages))
            stage = stages[name] = Stage(work / name)
            subprocess.run(["cp", "-a", base, stage.root], check=True)
        elif stage is None:
            raise ValueError(f"{word} before FROM")
        elif word == "RUN":
            if stage.run("/bin/sh", "-c", filled):
                raise SystemExit(f"step failed: RUN {filled}")
        elif word == "COPY":
            words = filled.split()
            source = words.pop(0).partition("=")[2] if words[0].startswith("--from") else ""
            stage.copy(words, stages[source].root if source else HERE.parent)
        elif word == "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "ENV":
            name, _, value = rest.partition("=")
            stage.variables[name] = value
        elif word == "USER":
            users = (stage.root / "etc/passwd").read_text()
            (home,) = re.findall(rf"^{rest}:.*:(.*):.*$", users, flags=re.M)
            stage.user, stage.variables["HOME"] = rest, home
        elif word == "ENTRYPOINT":
            stage.entry = json.loads(rest)
        elif word not in ("VOLUME", "CMD"):
            raise ValueError(f"unknown instruction {word}")
    assert stage is not None
    return stage


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    stage = build((HERE / "Dockerfile").read_text(), args.root.resolve(), args.work.resolve())
    print(f"== {shlex.join(args.command)}, as {stage.user}", flush=True)
    return stage.run(*args.command)


if __name__ == "__main__":
    sys.exit(main())
