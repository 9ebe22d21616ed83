"""Define the questions of checks to a machine; record the answers, and replay them.

Every question is a kind and some words, and every answer is JSON.  So a recording of the answers is
enough to repeat a diagnosis.
"""

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

Answer: TypeAlias = Any  # JSON data
Evidence: TypeAlias = dict[str, Answer]  # "kind word word" -> answer


class Node(NamedTuple):
    """A file or device node: mode and owner as in `ls -l`, and this user's permissions."""

    mode: str  # "crw-rw----"
    owner: str
    group: str
    read: bool
    write: bool

    def __str__(self) -> str:
        return f"{self.mode} {self.owner}:{self.group}"


class System(abc.ABC):
    """A machine under diagnosis.  A missing file or value is an answer, not an exception."""

    @abc.abstractmethod
    def ask(self, kind: str, *words: str) -> Answer:
        """Answer one question."""

    def machine(self) -> str:
        """Return the architecture, as `uname -m` names it."""
        return str(self.ask("machine"))

    def environment(self, name: str) -> str:
        """Return an environment variable; "" if it is not set."""
        return str(self.ask("environment", name))

    def text(self, path: str) -> str | None:
        """Return the stripped text of a small file, with newlines for NULs; None if missing."""
        answer: str | None = self.ask("text", path)
        return answer

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        answer: list[str] = self.ask("names", path)
        return answer

    def node(self, path: str) -> Node | None:
        """Return mode, owner and permissions of *path*; None if it does not exist."""
        answer = self.ask("node", path)
        return None if answer is None else Node(**answer)

    def matches(self, path: str, pattern: str) -> list[str] | None:
        """Return the distinct matches of *pattern* in a file; None if the file is missing."""
        answer: list[str] | None = self.ask("matches", path, pattern)
        return answer

    def read(self, reader: str, path: str) -> dict[str, Any] | None:
        """Return the facts that *reader* reads from a file, such as the names in a library.

        None: the file is missing, or the system has no such reader.
        """
        answer: dict[str, Any] | None = self.ask("read", reader, path)
        return answer

    def runs(self, name: str) -> bool:
        """Return whether a process called *name* is running."""
        return bool(self.ask("runs", name))

    def log(self, pattern: str) -> list[str]:
        """Return the lines of the kernel's log that match *pattern*; none without permission."""
        answer: list[str] = self.ask("log", pattern)
        return answer

    def probe(self, name: str) -> dict[str, Any]:
        """Return the result of the trial called *name*; {} if this system has no such trial."""
        answer: dict[str, Any] = self.ask("probe", name)
        return answer


# For each kind of question, the answer if the file or value is missing, and the types of answers.
KINDS: dict[str, tuple[Answer, type | tuple[type, ...]]] = {
    "machine": ("", str),
    "environment": ("", str),
    "text": (None, (str, type(None))),
    "names": ([], list),
    "node": (None, (dict, type(None))),
    "matches": (None, (list, type(None))),
    "read": (None, (dict, type(None))),
    "runs": (False, bool),
    "log": ([], list),
    "probe": ({}, dict),
}


class Recorder(System):
    """Asks another system each question once, and stores the answers."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.evidence: Evidence = {}
        self.asked: list[str] = []  # questions since the last `begin`

    def begin(self) -> None:
        """Clear the list of questions for the next check, but not the answers."""
        self.asked = []

    def ask(self, kind: str, *words: str) -> Answer:
        """Return the recorded answer; for a new question, ask the other system."""
        key = " ".join((kind, *words))
        if key not in self.evidence:
            self.evidence[key] = self._system.ask(kind, *words)
        if key not in self.asked:
            self.asked.append(key)
        return self.evidence[key]


class Replay(System):
    """Answers from recorded evidence; files and values without a recorded answer are missing."""

    def __init__(self, evidence: Mapping[str, Answer]) -> None:
        self._evidence = evidence

    def ask(self, kind: str, *words: str) -> Answer:
        """Answer from the evidence."""
        return self._evidence.get(" ".join((kind, *words)), KINDS[kind][0])


def wrong(evidence: object) -> str | None:
    """Return a reason why untrusted evidence is invalid, or None."""
    if not isinstance(evidence, dict):
        return "it is no object"
    for key, answer in evidence.items():
        kind = key.partition(" ")[0]
        if kind not in KINDS:
            return f"nothing is known of {key[:60]!r}"
        if not isinstance(answer, KINDS[kind][1]):
            return f"{key[:60]!r} is answered by {str(answer)[:60]!r}"
        if isinstance(answer, list) and not all(isinstance(item, str) for item in answer):
            return f"{key[:60]!r} is answered by items that are no text"
        if kind == "node" and isinstance(answer, dict) and not _is_node(answer):
            return f"{key[:60]!r} is answered by {str(answer)[:60]!r}"
    return None


def _is_node(answer: dict[str, Any]) -> bool:
    kinds = Node.__annotations__
    return answer.keys() == kinds.keys() and all(
        isinstance(answer[name], kind) for name, kind in kinds.items()
    )
