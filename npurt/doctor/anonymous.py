"""Remove personal data from evidence: serial numbers, addresses, names of people.

Checks do not ask for personal data, but files and logs may contain some.  This module removes the
personal data that its patterns match.
"""

import getpass
import re
from collections.abc import Iterable
from pathlib import Path
from platform import node
from typing import Any

from npurt.doctor.system import Evidence

_PATTERNS = (
    (r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b", "ADDRESS"),  # MAC
    (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "ADDRESS"),  # IPv4
    (r"\b(?:[0-9A-Fa-f]{1,4}:){3,7}[0-9A-Fa-f:]*[0-9A-Fa-f]\b", "ADDRESS"),  # IPv6
    (r"\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b", "UUID"),
    (r"(?i)(serial(?:[ _]?(?:no|number))?\W{0,3})[0-9A-Za-z-]{4,}", r"\1SERIAL"),
    (r"(?i)(testsig-0x)[0-9a-f]+", r"\1SERIAL"),
    (r"[\w.+-]+@[\w-]+\.[\w.-]+", "MAIL"),
    (r"(/(?:home|Users)/)[^/\s;:,'\"]+", r"\1USER"),
    (r"\b\d{14,16}\b", "NUMBER"),  # IMEI
)
_NOBODY = ("root", "user", "nobody", "localhost")  # names that identify no person
_SHORTEST = 3  # characters; shorter names occur in too many other words


def secrets() -> dict[str, str]:
    """Return the names of this machine and its user, each with the word that replaces it."""
    try:
        user, home = getpass.getuser(), str(Path.home())
    except (
        KeyError,
        OSError,
        RuntimeError,
    ):  # the user id has no name, as in containers
        user = home = ""
    host = node()
    return {home: "/home/USER", host: "HOST", host.partition(".")[0]: "HOST", user: "USER"}


def anonymised(evidence: Evidence, names: dict[str, str]) -> Evidence:
    """Return *evidence* after replacing *names* and text that matches a personal-data pattern.

    Questions and answers get the same replacements, so that a replay finds the answers.
    """
    rules = [
        (re.compile(rf"(?<![0-9A-Za-z]){re.escape(name)}(?![0-9A-Za-z])"), stands)
        for name, stands in sorted(names.items(), key=lambda pair: -len(pair[0]))
        if len(name) >= _SHORTEST and name not in _NOBODY and name != "/root"
    ]
    rules += [(re.compile(pattern), stands) for pattern, stands in _PATTERNS]
    return {_clean(key, rules): _deep(answer, rules) for key, answer in evidence.items()}


Rules = list[tuple[re.Pattern[str], str]]


def _clean(text: str, rules: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for pattern, stands in rules:
        text = pattern.sub(stands, text)
    return text


def _deep(value: Any, rules: Rules) -> Any:
    if isinstance(value, str):
        return _clean(value, rules)
    if isinstance(value, list):
        return [_deep(item, rules) for item in value]
    if isinstance(value, dict):
        return {name: _deep(item, rules) for name, item in value.items()}
    return value
