"""Test models of hubs: the right file arrives complete and checked, or an error gives the reason.

The hub is `tests.models.hub_server` on the loopback interface; nothing here needs another network.
"""

import os
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from urllib.parse import urlsplit

import huggingface_hub
import pytest
from huggingface_hub import constants

import npurt
from npurt.cli import main
from npurt.compat import llama_cpp
from npurt.errors import DownloadError, NpurtError, SettingError, UnsupportedOp
from npurt.models import download, locate, requests
from npurt.models.hub import Hub
from npurt.models.reference import Reference
from tests.limits import HANG_SECONDS
from tests.llm import tiny
from tests.models import hub_server
from tests.models.hub_calls import blobs, fetch, refused
from tests.models.hub_server import COMMIT, CONTENT, REPO, TOKEN, Fault


def test_a_model_arrives_in_the_cache_of_huggingface_hub(hub):
    path = fetch(REPO)

    assert path.read_bytes() == hub.repos[REPO]["Tiny-Q4_K_M.gguf"]
    assert blobs() == [hub_server.sha256(path.read_bytes())]
    found = huggingface_hub.hf_hub_download(
        REPO, "Tiny-Q4_K_M.gguf", cache_dir=constants.HF_HUB_CACHE, local_files_only=True
    )
    assert Path(found) == path
    (repo,) = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE).repos
    assert (repo.repo_id, repo.size_on_disk) == (REPO, len(path.read_bytes()))


def test_what_is_in_the_cache_is_not_downloaded_again(hub):
    first = fetch(REPO)
    hub.requests.clear()

    assert fetch(REPO) == first
    assert hub.downloads() == []


def test_what_huggingface_hub_downloaded_is_not_downloaded_again(hub):
    path = huggingface_hub.hf_hub_download(
        REPO, "Tiny-Q4_K_M.gguf", cache_dir=constants.HF_HUB_CACHE, endpoint=hub.url
    )
    hub.requests.clear()

    assert fetch(REPO) == Path(path)
    assert hub.downloads() == []


def test_a_download_that_is_cut_goes_on_where_it_was(hub):
    hub.faults = [Fault("/store/", cut=300_000), Fault("/store/", cut=300_000)]

    path = fetch(REPO)

    assert path.read_bytes() == hub.repos[REPO]["Tiny-Q4_K_M.gguf"]
    assert hub.downloads() == ["", "bytes=300000-", "bytes=600000-"]


def test_a_download_that_was_given_up_goes_on_in_the_next_call(hub):
    hub.faults = [Fault("/store/", cut=300_000), Fault("/store/", times=99, cut=0)]
    error = refused(REPO)
    assert "300000 of" in error.what
    assert "to continue" in error.remedy

    hub.faults = []
    hub.requests.clear()
    path = fetch(REPO)

    assert path.read_bytes() == hub.repos[REPO]["Tiny-Q4_K_M.gguf"]
    assert hub.downloads() == ["bytes=300000-"]
    assert blobs() == [hub_server.sha256(path.read_bytes())]  # and no partial file


@pytest.mark.parametrize("what", ["other bytes", "other bytes after a cut"])
def test_a_wrong_hash_is_refused_and_leaves_nothing(hub, what):
    right = hub.repos[REPO]["Tiny-Q4_K_M.gguf"]
    wrong = right[:-1] + b"?"
    cut = [Fault("/store/", cut=300_000)] if what.endswith("cut") else []
    hub.faults = [*cut, Fault("/store/", content=wrong)]

    error = refused(REPO)

    assert hub_server.sha256(wrong) in error.what
    assert hub_server.sha256(right) in error.what
    assert blobs() == []
    assert fetch(REPO).read_bytes() == right


def test_a_file_of_git_is_checked_by_the_hash_of_git(hub):
    of_git = "53b7dcdfb2702f3512ca9b967b2a138fcfe9bea9"  # printf GGUF | git hash-object --stdin
    hub.repos["Org/Git"] = {"a.gguf": b"GGUF"}
    sibling = {"rfilename": "a.gguf", "size": 4, "blobId": "f" * 40}
    hub.siblings = [sibling]
    assert of_git in refused("Org/Git").what

    hub.siblings = [sibling | {"blobId": of_git}]
    assert fetch("Org/Git").read_bytes() == b"GGUF"


def test_a_private_repository_needs_the_token_which_the_store_does_not_get(hub, monkeypatch):
    hub.private.add(REPO)
    assert "HF_TOKEN" in refused(REPO).remedy

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fetch(REPO)

    sent = {r.path.split("/")[1]: "authorization" in r.headers for r in hub.requests}
    assert sent["api"]
    assert sent["Org"]
    assert not sent["store"]


def test_a_gated_repository_says_where_its_terms_are(hub):
    hub.gated.add(REPO)

    error = refused(REPO)

    assert "terms" in error.what
    assert f"{hub.url}/{REPO}" in error.remedy


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_file_of_a_listed_repository_says_to_accept_the_terms(hub, status):
    """The hub lists gated repositories to all users, and refuses their files."""
    gated = {"X-Error-Code": "GatedRepo"}
    hub.faults = [Fault("/resolve/", status=status, headers=gated)]

    error = refused(REPO)

    assert "terms" in error.what
    assert "HF_TOKEN" in error.remedy


def test_a_refused_token_is_said_to_be_refused(hub):
    hub.faults = [
        Fault("/api/", status=401, headers={
            "X-Error-Message": "Invalid credentials in Authorization header"
        })
    ]  # fmt: skip

    assert "token is refused" in refused(REPO).remedy


def test_a_busy_hub_is_asked_again_after_the_time_it_states(hub, monkeypatch, capsys):
    waits = []
    monkeypatch.setattr(requests.time, "sleep", waits.append)
    busy = {"Retry-After": "7"}
    hub.faults = [
        Fault("/api/", status=429, headers=busy),
        Fault("/store/", status=429, headers=busy),
        Fault("/store/", status=503),
    ]

    Hub.usual().fetch(Reference.parse(REPO))

    assert waits[:2] == [7, 7]
    assert len(waits) == 3
    assert "the hub answers 429; trying again in 7 seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "status", "remedy"),
    [("/api/", 429, "HF_TOKEN"), ("/store/", 429, "HF_TOKEN"), ("/store/", 503, "the server's")],
)
def test_a_server_that_stays_busy_is_not_taken_for_a_broken_connection(
    path, status, remedy, hub, monkeypatch
):
    monkeypatch.setattr(requests.time, "sleep", lambda seconds: None)
    hub.faults = [Fault(path, times=9, status=status)]

    error = refused(REPO)

    assert f"answers {status}" in error.what
    assert remedy in error.remedy
    assert "connection" not in error.remedy


def test_a_hub_that_asks_for_too_long_a_wait_is_not_waited_for(hub):
    hub.faults = [Fault("/api/", times=9, status=429, headers={"Retry-After": "3600"})]

    assert "3600 seconds" in refused(REPO).what


def test_a_repository_that_is_misspelt_is_refused_with_similar_names(hub):
    error = refused("Org/Tiny-GUFF")

    assert "Org/Tiny-GUFF" in error.what
    assert REPO in error.remedy


def test_a_revision_that_is_not_there_is_named(hub):
    assert "'v9'" in refused(f"{REPO}@v9").what


def test_a_revision_can_be_a_commit(hub):
    assert COMMIT in str(fetch(f"{REPO}@{COMMIT}"))


def test_a_file_that_was_deleted_meanwhile_is_named(hub):
    hub.faults = [Fault("/resolve/", status=404)]

    assert "Tiny-Q4_K_M.gguf" in refused(REPO).what


def test_offline_the_cache_is_all_there_is(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    error = refused(REPO)
    assert "HF_HUB_OFFLINE" in error.what
    assert constants.HF_HUB_CACHE in error.what
    assert hub.requests == []

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    path = fetch(REPO)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()

    assert fetch(REPO) == path
    refused(f"{REPO}:Q8_0")
    assert hub.requests == []


def test_a_hub_that_does_not_answer_leaves_the_cache(hub, monkeypatch):
    path = fetch(REPO)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens

    assert fetch(REPO) == path
    assert "127.0.0.1" in refused("Org/Other").what


@pytest.mark.parametrize("host", ["https://no-such-host.invalid", "https://ann:secret@hub.invalid"])
def test_a_name_that_cannot_be_resolved_is_asked_for_twice(hub, monkeypatch, host):
    waits, asked = [], []

    def unknown(name, *args, **kwargs):
        asked.append(name)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(requests.time, "sleep", waits.append)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("HF_ENDPOINT", host)

    error = refused("Org/Other")

    assert "cannot be resolved" in error.what
    assert urlsplit(host).hostname in error.what
    assert len(waits) == 1
    assert len(asked) <= 2 * 2  # perhaps one error for IPv4 and one for IPv6


@pytest.mark.parametrize("path", ["/api/", "/store/"])
@pytest.mark.parametrize("status", [None, 401, 403, 404, 500, 200])
def test_a_password_in_the_endpoint_is_never_shown(hub, monkeypatch, capsys, path, status):
    """The test has several failures: 200 is an invalid answer, None is no answer."""
    monkeypatch.setattr(requests.time, "sleep", lambda seconds: None)
    usual = urlsplit(hub.url)
    port = usual.port if status else 9  # discard: nobody listens
    endpoint = f"http://ann:s3cret@{usual.hostname}:{port}"
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    hub.faults = [Fault(path, times=99, status=status)] if status else []

    shown = [repr(Hub.usual())]
    try:
        fetch(REPO)
    except NpurtError as error:
        shown += ["".join(traceback.format_exception_only(error)), str(error), error.remedy]
    shown += capsys.readouterr()
    assert not [text for text in shown if "s3cret" in text]


def test_models_are_listed_without_a_network(hub, monkeypatch):
    """`npurt models` only reads local files."""

    def none(*args, **kwargs):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket, "getaddrinfo", none)
    monkeypatch.setattr(socket.socket, "connect", none)
    assert main(["models"]) == 0
    assert hub.requests == []


def test_a_disk_without_room_is_refused_before_anything_is_downloaded(hub, monkeypatch):
    usage = type("usage", (), {"free": len(CONTENT) // 2})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda folder: usage)

    error = refused(REPO)

    assert "1 MB" in error.what
    assert hub.downloads() == []


def test_what_another_thread_downloads_is_waited_for(hub):
    gate = threading.Event()
    hub.faults = [Fault("/store/", gate=gate)]
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(fetch(REPO))) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not hub.downloads():  # one of them is downloading
        threads[0].join(0.01)
    threads[1].join(0.3)  # time for the other to start, if it could
    gate.set()
    for thread in threads:
        thread.join()

    assert len(hub.downloads()) == 1
    assert paths[0] == paths[1]


def test_what_huggingface_hub_downloads_is_waited_for(hub):
    gate = threading.Event()
    hub.faults = [Fault("/store/", gate=gate)]
    paths = []

    def other():
        path = huggingface_hub.hf_hub_download(
            REPO, "Tiny-Q4_K_M.gguf", cache_dir=constants.HF_HUB_CACHE, endpoint=hub.url
        )
        paths.append(Path(path))

    threads = [threading.Thread(target=other)]
    threads[0].start()
    while not hub.downloads():
        threads[0].join(0.01)
    threads.append(threading.Thread(target=lambda: paths.append(fetch(REPO))))
    threads[1].start()
    threads[1].join(0.3)  # time for it to start, if it could
    gate.set()
    for thread in threads:
        thread.join()

    assert len(hub.downloads()) == 1
    assert paths[0] == paths[1]


def test_all_parts_of_a_split_model_arrive(hub):
    names = [f"big/m-Q4_K_M-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    hub.repos["Org/Big"] = {name: name.encode() + CONTENT for name in reversed(names)}

    path = fetch("Org/Big")

    assert path.name == "m-Q4_K_M-00001-of-00003.gguf"
    for name in names:
        content = (path.parent / name.removeprefix("big/")).read_bytes()
        assert content == hub.repos["Org/Big"][name]


def test_tries_that_bring_little_come_to_an_end(hub):
    hub.faults = [Fault("/store/", times=99, cut=1)]

    assert "to continue" in refused(REPO).remedy
    assert len(hub.downloads()) == requests.TRIES


def test_the_tries_count_anew_after_progress(hub, monkeypatch):
    monkeypatch.setattr(download, "PROGRESS", 100_000)
    hub.faults = [Fault("/store/", times=8, cut=110_000)]

    assert fetch(REPO).read_bytes() == hub.repos[REPO]["Tiny-Q4_K_M.gguf"]


def test_similar_names_are_not_waited_for_without_end(hub, monkeypatch):
    monkeypatch.setattr("npurt.models.hub.QUESTION_S", 0.5)
    gate = threading.Event()
    hub.faults = [Fault("^/api/models$", times=9, gate=gate)]

    error = refused("Org/Tiny-GUFF")
    gate.set()

    assert "Org/Tiny-GUFF" in error.what
    assert REPO not in error.remedy  # which was too late


@pytest.mark.parametrize("token", ["hf_SECRET\xe9", "hf_SECRET and more", "hf_SECRET\x01"])
def test_a_token_that_cannot_be_is_refused_and_not_shown(hub, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)

    error = refused(REPO)

    assert "token" in error.what
    assert "SECRET" not in str(error)


def test_an_answer_that_is_no_listing_does_not_show_its_reason(hub, monkeypatch):
    def fail(*args, **kwargs):
        raise ValueError("Bearer hf_SECRET")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)

    assert "SECRET" not in str(refused(REPO))


@pytest.mark.parametrize(
    ("proxy", "says"),
    [("socks5://127.0.0.1:1", "socksio"), ("gopher://me:hidden@x:1", "http://HOST")],
)
def test_a_proxy_that_cannot_be_used_is_refused(hub, monkeypatch, proxy, says):
    monkeypatch.setitem(sys.modules, "socksio", None)  # is not installed
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", proxy)
    huggingface_hub.close_session()
    try:
        error = refused(REPO)
        with pytest.raises(DownloadError, match="ALL_PROXY"):
            locate(f"{hub.url}/pages/a.gguf")
    finally:
        huggingface_hub.close_session()

    assert "ALL_PROXY" in error.what
    assert says in str(error)
    assert "hidden" not in str(error)


def test_a_busy_hub_is_asked_as_often_when_the_cache_has_the_model(hub, capsys):
    fetch(f"{REPO}:Q2_K")
    hub.faults = [Fault("/api/", status=503)]

    assert fetch(REPO).name == "Tiny-Q4_K_M.gguf"
    hub.faults = [Fault("/api/", times=99, status=503)]
    assert fetch(f"{REPO}:Q2_K").name == "Tiny-Q2_K.gguf"
    assert "using Tiny-Q2_K.gguf from the cache" in capsys.readouterr().err


def test_another_quantisation_of_the_cache_is_not_taken_for_the_usual_one(hub):
    fetch(f"{REPO}:Q2_K")
    hub.faults = [Fault("/api/", times=99, status=503)]

    assert f"{REPO}/Tiny-Q2_K.gguf" in refused(REPO).remedy


# --- From Python ----------------------------------------------------------------------------------


@pytest.fixture
def real(hub):
    """Make the hub serve a model that runs."""
    hub.repos[REPO] = {"llama3-Q4_K_M.gguf": tiny.path("llama3", "q8_0").read_bytes()}
    return hub


def test_from_pretrained_opens_a_file_of_a_repository(real):
    real.repos[REPO]["other-Q8_0.gguf"] = b"GGUF, but broken"

    with npurt.Llama.from_pretrained(REPO, "*Q4_K_M.gguf", n_ctx=64, progress=False) as llm:
        assert llm.path.name == "llama3-Q4_K_M.gguf"
    with npurt.Llama.from_pretrained(REPO, n_ctx=64, progress=False) as llm:
        assert llm.path.name == "llama3-Q4_K_M.gguf"
    with pytest.raises(SettingError, match="both select"):
        npurt.Llama.from_pretrained(f"{REPO}:Q8_0", "*Q4_K_M.gguf")


def test_from_pretrained_as_llama_cpp_python_has_it(real):
    options = {"n_ctx": 64, "verbose": False}
    with llama_cpp.Llama.from_pretrained(REPO, filename="*Q4_K_M.gguf", **options) as llm:
        assert llm.n_ctx() == 64
        assert llm.model_path.endswith("llama3-Q4_K_M.gguf")
    with pytest.raises(UnsupportedOp, match="cache_dir='x'"):
        llama_cpp.Llama.from_pretrained(REPO, "*Q4_K_M.gguf", cache_dir="x")


def test_the_variables_of_huggingface_hub_are_obeyed(real, tmp_path):
    real.private.add(REPO)
    home = tmp_path / "home"
    usual = os.environ | {"HF_ENDPOINT": real.url, "HF_HOME": str(home), "HF_TOKEN": TOKEN}
    script = f"from npurt.models import locate; print(locate('hf:{REPO}'))"

    def run(**variables):
        return subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True, text=True, timeout=HANG_SECONDS, env=usual | variables,
        )  # fmt: skip

    path = run().stdout.strip()

    assert path.startswith(f"{home}/hub/")
    assert Path(path).read_bytes() == real.repos[REPO]["llama3-Q4_K_M.gguf"]
    real.requests.clear()
    assert run(HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9").stdout.strip() == path
    assert real.requests == []
    assert "HF_TOKEN" in run(HF_TOKEN="", HF_HOME=str(tmp_path / "other")).stderr
