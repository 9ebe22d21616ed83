"""Errors as HTTP responses, in the form of each interface."""

import logging
import traceback
from typing import Any

from npurt.base import extras, late
from npurt.errors import NpurtError, PackageError

log = logging.getLogger("npurt.serve")

TYPES = {  # error types of OpenAI's interface by status; other statuses: invalid_request_error
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable_error",
    504: "timeout_error",
}
LLAMA_CPP = {  # paths whose errors have llama.cpp's form
    "/apply-template", "/completion", "/detokenize", "/embedding", "/health", "/infill", "/metrics",
    "/lora-adapters", "/models/load", "/models/unload", "/props", "/rerank", "/reranking", "/slots",
    "/tokenize",
}  # fmt: skip
ANTHROPIC = TYPES | {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


class HttpError(NpurtError):
    """An error with an HTTP status.

    Attributes:
        status: The HTTP status.
        code: The machine-readable name of the error.
        param: The name of the wrong field of the request.
        headers: Additional headers of the response.
        counts: Additional fields of the error: ``n_prompt_tokens`` and ``n_ctx``, as in llama.cpp.
    """

    def __init__(
        self,
        status: int,
        what: str,
        *,
        remedy: str,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(what, remedy=remedy)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}
        self.counts: dict[str, int] = {}

    @property
    def message(self) -> str:
        """The error and its remedy, in one line."""
        return f"{self.what}; {self.remedy}"


def wrong(what: str, remedy: str, param: str | None = None, code: str | None = None) -> HttpError:
    """Return the error of an invalid request, with status 400."""
    return HttpError(400, what, remedy=remedy, param=param, code=code)


def of(error: NpurtError, status: int = 400) -> HttpError:
    """Return *error* as an HttpError with *status*; an HttpError is returned unchanged."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, PackageError):  # not an error of the request
        log.error("%s", error.what)
        return HttpError(
            500, error.what, remedy=f"{error.remedy}, and start the server again",
            code="package_missing",
        )  # fmt: skip
    return HttpError(status, error.what, remedy=error.remedy)


def internal_error(error: Exception) -> HttpError:
    """Return the error response for a bug of npurt, and log the traceback.

    Neither the response nor the log contains the message of *error*, which may contain a prompt.
    A failed import is not a bug: a package was replaced or removed after the server's start.
    """
    if isinstance(error, ImportError) and (found := late.package_error(error)) is not None:
        return of(found)
    if isinstance(error, ImportError):
        log.error("the package %s cannot be loaded any more", error.name)
        return HttpError(
            500, f"the package {error.name} cannot be loaded any more",
            remedy=f"{extras.command('server')}, and start the server again",
            code="package_missing",
        )  # fmt: skip
    log.error(
        "an internal error: %s\n%s",
        type(error).__name__, "".join(traceback.format_tb(error.__traceback__)),
    )  # fmt: skip
    return HttpError(
        500, f"npurt failed with {type(error).__name__}",
        remedy="report it with what the server logged", code="internal_error",
    )  # fmt: skip


def shaped(error: HttpError, path: str) -> dict[str, Any]:
    """Return the response body of *error* in the form of the interface that *path* belongs to."""
    kind = TYPES.get(error.status, "invalid_request_error")
    if error.code == "context_length_exceeded":
        kind = "exceed_context_size_error"
    if path.startswith("/v1/messages"):
        if not error.counts:
            kind = ANTHROPIC.get(error.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": error.message, **error.counts}}
    if path.startswith("/api/"):
        return {"error": error.message}
    if path in LLAMA_CPP:
        return {
            "error": {"code": error.status, "message": error.message, "type": kind, **error.counts}
        }
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": error.code,
            **error.counts,
        }
    }
