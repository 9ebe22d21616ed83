"""What a user can do on the chat page besides asking, in a browser with the fake engine."""

import json

import pytest
from selenium.webdriver.common.keys import Keys

from tests.limits import eventually
from tests.serve.browser import Page, chromium
from tests.serve.live import serving
from tests.serve.test_browser import begin, ids, logged, recorded

LISTS = """- [ ] open
- [x] done

| none | left | center | right |
|------|:-----|:------:|------:|
| 1 | 2 | 3 | 4 |
"""
DEFAULTS = {"temperature": 0.25, "top_k": 30}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    settings = {"sampling": DEFAULTS, "max_tokens": 500, "ping": 0.05}
    with serving(
        folder, n_ctx=2048, step_seconds=0.002, chunk=16, settings=settings, texts=[ids(LISTS)]
    ) as found:
        yield found


@pytest.fixture
def page(browser, server):
    found = Page(browser, server.url)
    yield begin(found, seed=50, max_tokens=12)
    assert logged(found) == []
    found.forget()


def shown(page, selector):
    """Return the texts of the visible elements that match."""
    return [each.text for each in page.all(selector) if each.is_displayed()]


def change(page, selector, value):
    page.run(
        "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
        "for (const kind of ['input', 'change'])"
        " field.dispatchEvent(new Event(kind, { bubbles: true }))",
        selector,
        value,
    )


def kept(page):
    """Return the stored conversations, the newest first."""
    found = page.run("return Object.entries({...localStorage})")
    chats = [json.loads(value) for key, value in found if key.startswith("npurt.chat.")]
    return sorted(chats, key=lambda chat: -chat["changed"])


def test_an_answer_that_was_cut_is_continued(page):
    page.say("Hello")
    first = page.settles(2)[1]
    sent = recorded(page)
    assert shown(page, "[name=continue]") == ["Continue"]
    page.click("[name=continue]")
    assert eventually(lambda: page.idle and page.texts()[1] != first)
    whole = page.settles(2)[1]

    # The browser drops blanks at the end of a paragraph.
    assert whole.replace("\n", "").replace(" ", "").startswith(first.strip().replace(" ", ""))
    (body,) = sent()
    assert body["continue_final_message"] is True
    assert body["messages"][0] == {"role": "user", "content": "Hello"}
    answer = kept(page)[0]["messages"][1]
    assert answer["content"].startswith(body["messages"][1]["content"])
    assert "24 tokens" in page.texts(".figures")[0]


def test_a_finished_answer_is_not_continued(page):
    begin(page, seed=0)
    page.say("Hello")
    page.settles(2)
    assert shown(page, "[name=continue]") == []


def test_versions_of_an_answer_keep_what_followed_them(page):
    page.say("Hello")
    first = page.settles(2)[1]
    page.say("More")
    assert page.settles(4)[1] == first
    change(page, "[name=seed]", "51")
    page.click("[name=again]")  # of the first answer
    assert eventually(lambda: page.idle and shown(page, ".versions span") == ["2/2"])
    second = page.settles(2)[1]
    assert second != first
    page.click("[name=older]")
    assert page.settles(4)[:3] == ["Hello", first, "More"]
    page.click("[name=older]")  # there is no older version
    page.browser.refresh()
    assert page.settles(4)[1] == first
    page.click("[name=newer]")
    assert page.settles(2) == ["Hello", second]
    assert shown(page, ".versions span") == ["2/2"]


def test_a_conversation_is_renamed_and_found(page):
    page.say("Apples")
    page.settles(2)
    page.click("[name=rename]")
    page.browser.switch_to.alert.send_keys("Fruit")
    page.browser.switch_to.alert.accept()
    assert page.texts("#chats [name=open]") == ["Fruit"]
    page.say("Pears")
    page.settles(4)
    page.click("#new")
    page.say("Boats")
    page.settles(2)
    assert page.texts("#chats [name=open]") == ["Boats", "Fruit"]
    for words, found in (
        ("pears", ["Fruit"]),
        ("FRU", ["Fruit"]),
        ("boat", ["Boats"]),
        ("nothing", []),
        ("", ["Boats", "Fruit"]),
    ):
        change(page, "#search", words)
        assert page.texts("#chats [name=open]") == found


def test_conversations_are_exported_and_imported(page, tmp_path):
    folder = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.browser.execute_cdp_cmd("Browser.setDownloadBehavior", folder)
    page.say("Apples")
    texts = page.settles(2)
    page.click("#export")
    assert eventually(lambda: list(tmp_path.glob("npurt-*.json")))
    (file,) = tmp_path.glob("npurt-*.json")
    page.find("#imported").send_keys(str(file))
    assert eventually(lambda: page.texts("#notice") == ["0 new conversations."])
    page.run("localStorage.clear()")
    page.browser.refresh()
    page.find("#imported").send_keys(str(file))
    assert eventually(lambda: page.texts("#notice") == ["1 new conversations."])
    page.click("#chats [name=open]")
    assert page.texts() == texts

    for content in ("x", "{}", '{"format": "npurt conversations", "chats": 5}'):
        wrong = tmp_path / "wrong.json"
        wrong.write_text(content)
        change(page, "#search", "")
        page.find("#imported").send_keys(str(wrong))
        words = ["wrong.json has no conversations of this page."]
        assert eventually(lambda words=words: page.texts("#notice") == words)
        page.run("document.querySelector('#notice').textContent = ''")
    assert len(kept(page)) == 1


def test_a_damaged_or_hostile_import_changes_nothing_else(page, tmp_path):
    hostile = "<img src=x onerror='window.hit = 1'>"
    good = {
        "id": "../x",
        "title": hostile,
        "system": 5,
        "revision": "9",
        "changed": "soon",
        "settings": {"messages": [], "temperature": 0.5, "top_k": "3"},
        "messages": [
            {
                "role": "assistant",
                "content": hostile,
                "thought": {},
                "version": 7,
                "figures": {"rate": "fast", "first": {}, "used": hostile},
            }
        ],
    }
    chats = [
        good,
        {"id": "a", "title": "t", "messages": "x"},
        {"id": "b", "title": "t", "messages": [{"role": "user"}]},
        {
            "id": "c",
            "title": "t",
            "messages": [{"role": "assistant", "content": "", "versions": [{"rest": [5]}]}],
        },
        {"id": "d", "title": "t", "messages": [{"role": "user", "content": "", "files": [{}]}]},
        None,
    ]
    file = tmp_path / "hostile.json"
    file.write_text(json.dumps({"format": "npurt conversations", "version": 1, "chats": chats}))
    page.find("#imported").send_keys(str(file))
    assert eventually(lambda: page.texts("#notice") == ["1 new conversations."])
    (chat,) = kept(page)
    assert (chat["settings"], chat["system"]) == ({"temperature": 0.5}, "")
    page.click("#chats [name=open]")
    assert page.texts() == [hostile]
    assert page.run("return window.hit") is None


def test_text_files_are_attached_to_a_message(page, tmp_path):
    text, binary = tmp_path / "notes.md", tmp_path / "data.bin"
    text.write_text("# Notes\n```\ncode\n```\n")
    binary.write_bytes(b"\xff\x00")
    sent = recorded(page)
    page.find("#files").send_keys(f"{text}\n{binary}")
    assert eventually(lambda: page.texts("#attached li") == ["notes.md✕"])
    assert page.texts("#notice") == ["data.bin is not a text file in UTF-8."]
    page.say("What is this?")
    page.settles(2)

    quoted = f"File notes.md:\n````\n{text.read_text()}\n````"
    assert sent()[0]["messages"] == [{"role": "user", "content": f"What is this?\n\n{quoted}"}]
    assert page.texts("article.user .text") == ["What is this?"]
    assert page.texts(".file summary") == ["notes.md"]
    assert shown(page, "#attached li") == []
    page.type(Keys.ARROW_UP)  # an edited message keeps its files
    assert page.texts("#attached li") == ["notes.md✕"]
    page.click("[name=detach]")
    page.type("!", Keys.ENTER)
    page.settles(2)
    assert sent()[-1]["messages"] == [{"role": "user", "content": "What is this?!"}]


def test_a_theme_is_chosen_and_kept(page):
    color = "return getComputedStyle(document.body).backgroundColor"
    for theme, expected in (("dark", "rgb(20, 25, 28)"), ("light", "rgb(255, 255, 255)")):
        change(page, "#theme", theme)
        assert page.run(color) == expected
        page.browser.refresh()
        assert page.run(color) == expected
        assert page.run("return document.querySelector('#theme').value") == theme


def test_the_use_of_the_context_is_shown(page):
    page.say("Hello")
    page.settles(2)
    used = kept(page)[0]["messages"][1]["figures"]["used"]
    assert used > 12
    assert eventually(lambda: shown(page, "#gauge") == [f"Context: {used} of 2048 tokens"])
    page.click("#new")
    assert shown(page, "#gauge") == []


@pytest.mark.parametrize(("used", "left"), [(1700, 0), (1900, 4)])
def test_a_full_context_makes_room_before_the_next_question(page, used, left):
    """Otherwise the next answer is cut after a few tokens, without an error of the server."""
    turns = [{"role": role, "content": "word " * 20, "figures": {}}
             for _ in range(4) for role in ("user", "assistant")]  # fmt: skip
    turns[-1]["figures"] = {"used": used}
    begin(page, turns)
    page.say("And now?")
    page.settles(10)
    (mine,) = kept(page)
    assert mine.get("leftOut", 0) == left
    assert ("oldest messages are not sent" in page.texts("#notice")[0]) == bool(left)
    page.click("article:last-of-type [name=again]")
    page.settles(10)
    assert kept(page)[0].get("leftOut", 0) == left  # the same figures leave out no more


def test_the_prefill_is_shown(page):
    """A slow browser misses the counts of some prompts, so several are asked."""
    for seed in range(5):
        begin(page, seed=seed)
        page.run(
            "window.seen = []; new MutationObserver(() => {"
            "const line = document.querySelector('.reading');"
            "if (line && !line.hidden) window.seen.push(line.textContent);"
            "}).observe(document.querySelector('#messages'),"
            "{ subtree: true, childList: true, characterData: true })"
        )
        page.say(f"{seed} " + "word " * 400)
        page.settles(2)
        seen = page.run("return window.seen")
        assert "Waiting for the model" in seen
        assert shown(page, ".reading") == []
        counts = [line.split(" ")[3:6:2] for line in seen if line.startswith("Reading the prompt")]
        if counts:
            break
    assert counts
    assert all(0 < int(read) <= int(total) for read, total in counts)
    assert len({total for _, total in counts}) == 1


def test_the_defaults_of_the_server_are_shown(page):
    holder = "return document.querySelector(`[name=${arguments[0]}]`).placeholder"
    wanted = {name: str(value) for name, value in DEFAULTS.items()} | {"max_tokens": "500"}
    assert eventually(lambda: page.run(holder, "temperature") == "0.25")
    assert {name: page.run(holder, name) for name in wanted} == wanted
    assert page.run(holder, "min_p") == "server's default"


def test_task_lists_and_the_sides_of_columns(page):
    begin(page, seed=0)
    page.say("Hello")
    page.settles(2)
    tasks = (
        "return [...document.querySelectorAll('li.task input')].map(e => [e.checked, e.disabled])"
    )
    assert page.run(tasks) == [[False, True], [True, True]]
    assert [text.strip() for text in page.texts("li.task")] == ["open", "done"]
    sides = "return [...document.querySelectorAll('td')].map(e => getComputedStyle(e).textAlign)"
    assert page.run(sides) == ["left", "left", "center", "right"]


def test_examples_begin_a_conversation(page):
    examples = shown(page, ".start button")
    assert len(examples) == 4
    assert eventually(lambda: page.texts(".start h2") == ["Ask tiny"])
    page.click(".start button")
    assert page.settles(2)[0] == examples[0]
    assert shown(page, ".start button") == []


def test_a_page_that_is_closed_while_it_waits_shows_no_waiting(page):
    page.browser.execute_async_script(
        """
        const [done] = arguments;
        import("/page/chats.js").then(({ Chats }) => {
            const chat = new Chats().empty();
            const progress = { total: 9, processed: 3 };
            chat.messages.push({ role: "user", content: "Hello" });
            chat.messages.push({ role: "assistant", content: "", waiting: true, progress });
            new Chats().save(chat);
            sessionStorage.setItem("npurt.open", chat.id);
            done();
        });
        """
    )
    page.browser.refresh()
    assert page.texts() == ["Hello", ""]
    assert shown(page, ".reading") == []
