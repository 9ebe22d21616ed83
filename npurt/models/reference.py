"""References to models on a hub: USER/REPO, with a quantisation, a file or a revision."""

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from npurt.errors import SettingError, brief

PUBLIC = ("huggingface.co", "www.huggingface.co", "hf.co")
LONGEST_REPO = 200  # characters; the name of a folder may have 255
NAME = r"[A-Za-z0-9](?:[\w.-]*\w)?"  # excludes ".." and other special parts of paths
_REFERENCE = re.compile(
    rf"(?P<repo>{NAME}/{NAME})(?:@(?P<revision>\w[\w./-]*?))?"
    r"(?::(?P<quant>[\w.-]+)|/(?P<file>[^:]+\.gguf))?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A model on a hub: a repository, with a quantisation, or a file name or pattern."""

    repo: str
    quant: str | None = None
    file: str | None = None
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``user/repo``, ``user/repo:QUANT`` or ``user/repo/FILE.gguf``.

        ``@REVISION`` may follow the repository.

        Raises:
            SettingError: The text has another form.
        """
        match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
        if not match or ".." in text or "--" in match["repo"] or len(match["repo"]) > LONGEST_REPO:
            raise SettingError(
                f"{brief(text, 80)} names no hub repository",
                remedy="write USER/REPO, USER/REPO:QUANT or USER/REPO/FILE.gguf, "
                "such as Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0",
            )
        quant = match["quant"]
        if quant and quant.lower() == "latest":
            quant = None
        return cls(match["repo"], quant, match["file"], match["revision"] or "main")

    @classmethod
    def of(cls, repo: str, file: str | None, revision: str | None) -> Self:
        """Return the reference for ``user/repo[:QUANT]``, a file name or pattern, and a revision.

        Raises:
            SettingError: An argument has another form, or both QUANT and *file* are given.
        """
        for name, value in (("the file", file), ("the revision", revision)):
            if value is not None and not isinstance(value, str):
                raise SettingError(
                    f"{name} is {brief(value)}", remedy="pass a str, or leave it out"
                )
        if not isinstance(repo, str) or (file is None and revision is None):
            return cls.parse(repo)
        name, colon, quant = repo.partition(":")
        if colon and file is not None:
            raise SettingError(
                f"{quant!r} and {file!r} both select the file", remedy="omit one of the two"
            )
        rest = f"/{file}" if file is not None else colon + quant
        return cls.parse(name + (f"@{revision}" if revision else "") + rest)

    @classmethod
    def of_url(cls, url: str, endpoint: str) -> Self | None:
        """Return the reference for the URL of a file on the hub; None for other URLs."""
        parts = urlsplit(url)
        if parts.hostname not in (*PUBLIC, urlsplit(endpoint).hostname):
            return None
        match = re.fullmatch(r"/([^/]+/[^/]+)/(?:resolve|blob)/([^/]+)/(.+)", unquote(parts.path))
        return cls.parse(f"{match[1]}@{match[2]}/{match[3]}") if match else None

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        rest = f":{self.quant}" if self.quant else f"/{self.file}" if self.file else ""
        return self.repo + revision + rest
