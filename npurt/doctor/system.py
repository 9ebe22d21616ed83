"""The questions that checks ask of a machine; a recorder of the answers, and a replay of them.

Every question is a kind and some words, every answer is JSON.  So a diagnosis can be recorded, and
repeated from the recording alone.
"""

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

Answer: TypeAlias = Any  # of JSON
Evidence: TypeAlias = dict[str, Answer]  # "kind word word" -> answer


class Node(NamedTuple):
    """A file or device node, as `ls -l` shows it, and what this user may do with it."""

    mode: str  # "crw-rw----"
    owner: str
    group: str
    read: bool
    write: bool

    def __str__(self) -> str:
        return f"{self.mode} {self.owner}:{self.group}"


class System(abc.ABC):
    """A machine under diagnosis.  No method raises when something is missing."""

    @abc.abstractmethod
    def ask(self, kind: str, *words: str) -> Answer:
        """Answer one question."""

    def machine(self) -> str:
        """Return the architecture, as `uname -m` names it."""
        return str(self.ask("machine"))

    def environment(self, name: str) -> str:
        """Return a variable, "" when it is not set."""
        return str(self.ask("environment", name))

    def text(self, path: str) -> str | None:
        """Return what a small file holds, NULs as line ends, stripped; None if it has nothing."""
        answer: str | None = self.ask("text", path)
        return answer

    def names(self, path: str) -> list[str]:
        """Return what is in a folder, sorted."""
        answer: list[str] = self.ask("names", path)
        return answer

    def node(self, path: str) -> Node | None:
        """Return what `ls -l` shows of *path*, None when it does not exist."""
        answer = self.ask("node", path)
        return None if answer is None else Node(**answer)

    def matches(self, path: str, pattern: str) -> list[str] | None:
        """Return the distinct matches of *pattern* in a file of any size, None if it has none."""
        answer: list[str] | None = self.ask("matches", path, pattern)
        return answer

    def runs(self, name: str) -> bool:
        """Return whether a process called *name* runs."""
        return bool(self.ask("runs", name))

    def log(self, pattern: str) -> list[str]:
        """Return the lines of the kernel's log that *pattern* is in; none where it is not shown."""
        answer: list[str] = self.ask("log", pattern)
        return answer

    def probe(self, name: str) -> dict[str, Any]:
        """Return what a trial called *name* found; {} when it is not made here."""
        answer: dict[str, Any] = self.ask("probe", name)
        return answer


# The answer of each kind of question when there is nothing; other answers have the same type.
KINDS: dict[str, tuple[Answer, type | tuple[type, ...]]] = {
    "machine": ("", str),
    "environment": ("", str),
    "text": (None, (str, type(None))),
    "names": ([], list),
    "node": (None, (dict, type(None))),
    "matches": (None, (list, type(None))),
    "runs": (False, bool),
    "log": ([], list),
    "probe": ({}, dict),
}


class Recorder(System):
    """Asks another system each question once, and keeps the answers."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.evidence: Evidence = {}
        self.asked: list[str] = []  # since the last `begin`

    def begin(self) -> None:
        """Forget the questions of the last check; their answers stay."""
        self.asked = []

    def ask(self, kind: str, *words: str) -> Answer:
        """Answer from what is known, or ask."""
        key = " ".join((kind, *words))
        if key not in self.evidence:
            self.evidence[key] = self._system.ask(kind, *words)
        if key not in self.asked:
            self.asked.append(key)
        return self.evidence[key]


class Replay(System):
    """Answers from evidence; what was not recorded counts as missing."""

    def __init__(self, evidence: Mapping[str, Answer]) -> None:
        self._evidence = evidence

    def ask(self, kind: str, *words: str) -> Answer:
        """Answer from the evidence."""
        return self._evidence.get(" ".join((kind, *words)), KINDS[kind][0])


def wrong(evidence: object) -> str | None:
    """Return what is wrong with evidence that a stranger sent, or None."""
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
