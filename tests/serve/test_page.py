"""The files of the chat page over HTTP, without a browser."""

import json
import re
import urllib.request

import pytest

from npurt.serve import page
from npurt.serve.app import application
from tests.limits import HANG_SECONDS
from tests.serve.client import Client, asking

FOLDER = page.files("npurt.serve.page")


@asking
async def test_every_file_is_served_with_its_type_and_policy():
    client = Client()
    for path in page.FILES:
        reply = await client(path)
        assert reply.status == 200
        assert "default-src 'self'" in reply.headers["content-security-policy"]
        assert "unsafe" not in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-cache"
    assert (await client("/")).headers["content-type"] == "text/html; charset=utf-8"
    assert (await client("/page/main.js")).headers["content-type"] == (
        "text/javascript; charset=utf-8"
    )


@asking
async def test_a_file_that_the_browser_has_is_not_sent_again():
    client = Client()
    first = await client("/page/style.css")
    tag = first.headers["etag"]
    for known in (tag, f'"other", W/{tag}'):
        again = await client("/page/style.css", headers={"if-none-match": known})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert (await client("/page/style.css", headers={"if-none-match": '"other"'})).body


@asking
async def test_files_need_no_key_but_the_state_does():
    client = Client(guard={"keys": ["right"]})
    for path in page.FILES:
        assert (await client(path)).status == 200
    assert (await client(page.STATE)).status == 401
    assert (await client(page.STATE, headers={"authorization": "Bearer right"})).status == 200


@asking
async def test_without_the_page_its_paths_are_not_known():
    client = Client()
    client.app = application(client.front, page=False)
    for path in (*page.FILES, page.STATE):
        assert (await client(path)).status == 404
    assert (await client("/v1/models")).status == 200


@asking
async def test_the_state_says_where_texts_run():
    client = Client("hi", sequences=3, n_ctx=128)
    await client("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
    found = (await client(page.STATE)).json

    assert found["ready"] is True
    assert (found["model"], found["device"]) == ("tiny", "fake")
    assert (found["context"], found["sequences"], found["running"], found["waiting"]) == (
        128, 3, 0, 0,
    )  # fmt: skip
    assert (found["verified"], found["pages"]) == (7.0, None)  # the fake engine has no pages


@asking
async def test_other_files_of_the_folder_are_not_served():
    client = Client()
    for path in ("/page/__init__.py", "/page/../auth.py", "/page/%2e%2e/auth.py", "/page"):
        assert (await client(path)).status == 404


def test_every_file_of_the_folder_is_served():
    there = {each.name for each in FOLDER.iterdir() if not each.name.startswith("__")}
    assert there == set(page.FILES.values())


@pytest.mark.parametrize("name", sorted(set(page.FILES.values())))
def test_a_file_names_nothing_of_other_hosts_and_makes_no_markup_of_texts(name):
    text = (FOLDER / name).read_text()
    # the XML namespace of SVG
    hosts = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}

    assert not hosts
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", text)
    assert not re.search(r"<script>|\son\w+=\"|\sstyle=\"", text)


def test_the_state_of_a_real_engine_has_pages_and_checks(real):
    with urllib.request.urlopen(real.url + page.STATE, timeout=HANG_SECONDS) as reply:
        found = json.load(reply)

    assert found["device"] == "cpu"
    assert 0 <= found["used"] <= found["pages"]
    # no product was computed yet
    assert {name for name, value in found.items() if value is None} <= {"npu_share"}
