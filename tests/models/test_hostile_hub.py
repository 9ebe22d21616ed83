"""Test that answers of a hostile hub are refused and write nothing."""

import pytest

from npurt.errors import NpurtError
from tests.models import hub_server
from tests.models.hub_calls import blobs, refused
from tests.models.hub_server import REPO, Fault


@pytest.mark.parametrize(
    "change",
    [
        {"rfilename": "../../../../evil.gguf"},
        {"rfilename": "/etc/evil.gguf"},
        {"rfilename": "a/../evil.gguf"},
        {"rfilename": "a\\..\\evil.gguf"},
        {"rfilename": "a\0.gguf"},
        {"rfilename": "\x1b[2Ja.gguf"},
        {"size": -1},
        {"size": "many"},
        {"lfs": {"sha256": "../../evil", "size": 4, "pointerSize": 1}},
        {"lfs": {"sha256": "a" * 63, "size": 4, "pointerSize": 1}},
        {"lfs": {}, "blobId": None},
        {"lfs": "x"},
        {"rfilename": 5},
        {"rfilename": "a" * 300 + ".gguf"},
        {"rfilename": "a/" * 3000 + "b.gguf"},
        {"size": 10**400},
    ],
)
def test_a_listing_that_cannot_be_is_refused_and_writes_nothing(hub, tmp_path, change):
    hub.siblings = [
        {
            "rfilename": "a.gguf",
            "size": 4,
            "blobId": "0" * 40,
            "lfs": {"sha256": hub_server.sha256(b"GGUF"), "size": 4, "pointerSize": 1},
        }
        | change
    ]

    refused(REPO, NpurtError)

    assert not list(tmp_path.rglob("*.gguf"))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"<html>", b'{"id": "a/b", "sha": "../x", "siblings": []}']
)
def test_an_answer_that_is_no_listing_is_refused(hub, body):
    hub.faults = [Fault("/api/", status=200, body=body)]

    refused(REPO, NpurtError)


def test_a_file_longer_than_stated_is_refused(hub):
    content = hub.repos[REPO]["Tiny-Q4_K_M.gguf"]
    hub.siblings = [{
        "rfilename": "a-Q4_K_M.gguf",
        "size": 10,
        "lfs": {"sha256": hub_server.sha256(content), "size": 10, "pointerSize": 1},
    }]  # fmt: skip
    hub.repos[REPO]["a-Q4_K_M.gguf"] = content

    assert "not 10" in refused(REPO).what
    assert blobs() == []
