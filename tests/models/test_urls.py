"""Test models of https URLs: the right file arrives complete, or an error gives the reason.

The server is `tests.models.hub_server` on the loopback interface; no other network is needed.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import DownloadError, NpurtError, SettingError
from npurt.models import locate
from tests.models import hub_server
from tests.models.hub_calls import fetch
from tests.models.hub_server import CONTENT, REPO, Fault


def test_a_url_is_downloaded_once(hub):
    hub.pages["/pages/a.gguf"] = CONTENT
    url = f"{hub.url}/pages/a.gguf"

    path = locate(url, progress=False)

    assert path.name == "a.gguf"
    assert path.read_bytes() == CONTENT
    assert locate(url) == path
    assert len(hub.downloads()) == 1


def test_a_url_goes_on_after_a_cut_unless_the_file_is_another_by_then(hub):
    hub.pages["/pages/a.gguf"] = CONTENT
    hub.faults = [Fault("/pages/", cut=300_000), Fault("/pages/", times=99, cut=0)]
    url = f"{hub.url}/pages/a.gguf"
    with pytest.raises(DownloadError):
        locate(url)
    hub.faults = [Fault("/pages/", cut=300_000), Fault("/pages/", times=99, cut=0)]
    with pytest.raises(DownloadError):
        locate(url)
    hub.faults = []
    hub.pages["/pages/a.gguf"] = other = b"GGUF" + bytes(2_000_000)

    assert locate(url).read_bytes() == other
    assert "bytes=300000-" in hub.downloads()


def test_the_hash_in_a_url_is_checked(hub):
    hub.pages["/pages/a.gguf"] = CONTENT
    url = f"{hub.url}/pages/a.gguf#sha256="

    with pytest.raises(DownloadError, match="hash"):
        locate(url + "0" * 64)
    assert locate(url + hub_server.sha256(CONTENT)).read_bytes() == CONTENT
    with pytest.raises(DownloadError, match="hash"):
        locate(url + "0" * 64)  # of a file that is local by now
    with pytest.raises(SettingError, match="64"):
        locate(url + "12")


def test_a_page_instead_of_a_model_is_refused(hub, tmp_path):
    hub.pages["/pages/a.gguf"] = b"<html>please log in"

    with pytest.raises(DownloadError, match="a web page"):
        locate(f"{hub.url}/pages/a.gguf")
    assert not list(tmp_path.rglob("a.gguf*"))


def test_the_url_of_a_file_on_the_hub_means_the_hub(hub):
    for middle in ("resolve", "blob"):
        path = locate(f"{hub.url}/{REPO}/{middle}/main/Tiny-Q8_0.gguf?download=true")

        assert path == fetch(f"{REPO}:Q8_0")


def test_all_parts_of_a_split_url_arrive(hub):
    names = [f"/pages/m-{i:05}-of-00002.gguf" for i in (1, 2)]
    hub.pages = {name: b"GGUF" + name.encode() for name in names}

    path = locate(hub.url + names[0])

    assert path.read_bytes() == hub.pages[names[0]]
    assert path.with_name("m-00002-of-00002.gguf").read_bytes() == hub.pages[names[1]]


@pytest.mark.parametrize(
    "url",
    ["http://example.com/a.gguf", "ftp://example.com/a.gguf", "file:///etc/passwd",
     "http://127.0.0.1.example.com/a.gguf", "https:///a.gguf"],
)  # fmt: skip
def test_what_is_not_https_is_refused(hub, url):
    with pytest.raises(SettingError, match="https"):
        locate(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://[::1/a.gguf",
        "https://a\u2100b/a.gguf",
        "http://[x]/a",
        "https://a..b/a.gguf",
        f"https://{'a' * 70}.b/a.gguf",
    ],
)
def test_a_url_that_is_none_is_refused(hub, url):
    with pytest.raises(SettingError, match="URL"):
        locate(url)


@pytest.mark.parametrize("location", ["http://[::1/a.gguf", "http://127.0.0.1:x/"])
def test_a_redirect_to_nowhere_is_refused(hub, location):
    hub.pages["/pages/a.gguf"] = CONTENT
    hub.faults = [Fault("/pages/", location=location)]

    with pytest.raises(NpurtError):
        locate(f"{hub.url}/pages/a.gguf")


@given(st.text())
def test_no_url_does_more_than_raise(text):
    with pytest.raises(SettingError):
        locate(f"ftp://{text}")


def test_a_redirect_to_another_connection_than_https_is_refused(hub, tmp_path):
    hub.faults = [Fault("/pages/", location="http://192.0.2.1/a.gguf")]

    with pytest.raises(SettingError, match=r"192\.0\.2\.1"):
        locate(f"{hub.url}/pages/a.gguf")


def test_secrets_of_a_url_are_not_shown():
    with pytest.raises(SettingError) as caught:
        locate("http://me:secret@example.com/a.gguf?key=hidden")

    assert "secret" not in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_redirects_in_a_circle_end(hub):
    hub.faults = [Fault("/pages/", times=99, location="/pages/a.gguf")]

    with pytest.raises(DownloadError, match="redirected"):
        locate(f"{hub.url}/pages/a.gguf")


FULL = b"GGUF" + b"x" * 996
HEAD = b'HTTP/1.1 200 OK\r\nETag: "v"\r\n'
WHOLE = HEAD + b"Content-Length: 1000\r\n\r\n"
PART = b'HTTP/1.1 206 Partial Content\r\nETag: "v"\r\n'


def part(first, last, total=b"1000", etag=b"v"):
    """Return an answer with the bytes *first* to *last* of FULL."""
    body = FULL[first : last + 1]
    return PART.replace(b"v", etag) + (
        b"Content-Length: %d\r\nContent-Range: bytes %d-%d/%s\r\n\r\n"
        % (len(body), first, last, total)
        + body
    )


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + FULL


@pytest.mark.parametrize(
    "answers",
    [
        [WHOLE + FULL],
        [CHUNKED + b"\r\n0\r\n\r\n"],
        [CHUNKED[:-500], CHUNKED + b"\r\n0\r\n\r\n"],  # first without, then with the last chunk
        [WHOLE + FULL[:300], part(300, 599), part(600, 999)],  # less than the requested part
        [part(0, 299), part(300, 999)],  # not requested
        [WHOLE + FULL[:300], part(200, 999), WHOLE + FULL],  # another part than the requested one
        [WHOLE + FULL[:300], part(300, 999, etag=b"w"), WHOLE + FULL],  # of another file
        [WHOLE + FULL[:300], PART + b"Content-Length: 3\r\n\r\nabc", WHOLE + FULL],
        [WHOLE.replace(b'"v"', b'"\xe9"') + FULL[:300], WHOLE + FULL],
    ],
)
def test_a_file_is_whole_however_its_parts_arrive(hub, answers):
    with hub_server.answering(*answers) as url:
        assert locate(f"{url}/a.gguf", progress=False).read_bytes() == FULL


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([b"HTTP/1.0 200 OK\r\n\r\n" + FULL[:500]], "size"),
        ([b"HTTP/1.1 200 OK\r\n\r\n" + FULL[:500]], "size"),
        ([part(0, 499, total=b"*")], "size"),
        ([HEAD + b"Content-Length: " + b"9" * 17 + b"\r\n\r\nGGUF"], "9" * 17),
    ],
)
def test_an_answer_that_may_be_a_part_is_refused(hub, tmp_path, answers, says):
    with (
        hub_server.answering(*answers) as url,
        pytest.raises(DownloadError, match=says),
    ):
        locate(f"{url}/a.gguf", progress=False)
    assert not list(tmp_path.rglob("a.gguf"))


def test_an_answer_without_a_size_is_checked_by_its_hash(hub):
    digest = hub_server.sha256(FULL)
    with hub_server.answering(b"HTTP/1.0 200 OK\r\n\r\n" + FULL) as url:
        assert locate(f"{url}/a.gguf#sha256={digest}", progress=False).read_bytes() == FULL


def test_the_name_of_a_url_that_is_too_long_is_refused(hub):
    with pytest.raises(SettingError, match="name of a file"):
        locate(f"{hub.url}/{'a' * 300}.gguf")


@pytest.mark.parametrize("text", ["Qwen/Qwen2.5-0.5B-Instruct-GGUF", "Qwen/Qwen2.5-GGUF:Q8_0"])
def test_a_repository_without_hf_is_told_to_use_it(hub, text):
    with pytest.raises(NpurtError, match=f"hf:{text}"):
        locate(text)
