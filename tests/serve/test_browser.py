"""The chat page in a browser, with the fake engine."""

import re

import pytest
from selenium.webdriver.common.keys import Keys

from tests.limits import eventually
from tests.llm import tiny
from tests.serve import screenshot
from tests.serve.browser import Page, chromium
from tests.serve.client import served
from tests.serve.live import serving
from tests.serve.several import FILES, fill

MARKDOWN = """# Head

Some **bold**, *slanted*, ***both***, ~~gone~~ `x < y` and [a link](https://example.org/a_(b)).

- one
- two
  1. inner

> said

| a | b |
|---|---|
| 1 | 2 |

```python
print("<b>")
```
"""
HOSTILE = """<script>window.hit = 1</script><img src=x onerror="window.hit = 2">
[click](javascript:window.hit=3) [data](data:text/html,<script>window.hit=4</script>)
![picture](http://127.0.0.1:1/leak?secret) <iframe srcdoc="<script>parent.hit=5</script>"></iframe>
[quoted](https://example.org/"onmouseover="window.hit=6) <a href="javascript:hit=7">x</a>

```html"><script>window.hit = 8</script>
</code></pre><script>window.hit = 9</script>
```

[x]( javascript:hit=10) [x](&#106;avascript:hit=11) [x](JaVaScRiPt:hit=12) [x](vbscript:x)
<svg onload="hit=13"><style>*{display:none}</style><form action="https://example.org"><input>
"""
SIZE = 100_000
# Each of these texts makes a careless parser search, nest or backtrack without end.
BOMBS = [
    ">", "> ", "- ", "1. ", "[", "![", "](", "[](", "[a](", "*", "**", "*a", "**a*", "_", "*a_b~~",
    "`", "`a``", "|", "|-", "a|b\n-|-\n", "<", "#", "\\", "~~~\n", "```\n", "  - x\n", "&amp;",
    "http://", "http://a", "[a](http://b) ", "*a* ", " ", "\n", "\t", "-" * 50 + " " * 50, "((",
    "_a", "***a", "> - ", "$", "$$", "$$ a\n", "\\[ a\n", "\\(", "\\[", "$a$ ", "$a^{", "\\(a\\)",
    "$a'", "$5 ", "$$\\frac{", "- [ ] ", "- [x] a\n", "|:-:|\n|:-:|\n",
]  # fmt: skip


def ids(text):
    return served().tokenizer.encode(text, add_bos=False)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server whose completions are chosen by the seed; other seeds give random tokens."""
    texts = [ids(MARKDOWN), ids(HOSTILE)]
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, n_ctx=8192, step_seconds=0.002, texts=texts) as found:
        yield found


@pytest.fixture
def page(browser, server):
    """The chat page as a new user sees it."""
    found = Page(browser, server.url)
    yield begin(found)
    found.forget()


def begin(page, messages=None, **settings):
    """Reload *page* with stored *settings* and, if given, a conversation of *messages*."""
    page.forget()
    page.keep("localStorage", "npurt.settings", {"system": "", "settings": settings})
    if messages is not None:
        chat = {"id": "a", "title": "kept", "system": "", "settings": settings,
                "messages": messages, "revision": 1, "changed": 1}  # fmt: skip
        page.keep("localStorage", "npurt.chat.a", chat)
        page.run("sessionStorage.setItem('npurt.open', 'a')")
    page.browser.get(page.url)
    page.browser.get_log("browser")  # discard earlier log entries
    return page


def logged(page):
    """Return the browser's log entries, such as scripts that the page's policy blocked."""
    return [each["message"] for each in page.browser.get_log("browser")]


def render(page, texts):
    """Return [elements, characters] that the page makes of each text."""
    return page.browser.execute_async_script(
        """
        const [texts, done] = arguments;
        import("/page/markdown.js").then(({ markdown, element, fragment }) =>
            done(texts.map(([unit, size]) => {
                const text = unit.repeat(Math.ceil(size / unit.length)).slice(0, size);
                const made = element("div", {}, fragment(markdown(text)));
                return [made.querySelectorAll("*").length, made.textContent.length];
            })));
        """,
        texts,
    )


def test_a_chat_is_streamed_and_kept(page):
    begin(page, seed=50, max_tokens=40)
    page.say("Hello")
    said, answer = page.settles(2)
    assert said == "Hello"
    assert answer
    (line,) = page.texts(".figures")
    assert re.fullmatch(
        r"40 tokens, \d+\.\d tokens/s, first after \d+\.\d\d s, on fake, "
        "reached the limit of tokens", line
    )  # fmt: skip

    page.browser.refresh()
    assert page.settles(2) == [said, answer]  # the conversation was stored
    assert page.texts("#chats [name=open]") == ["Hello"]

    page.click("[name=again]")
    assert page.settles(2) == [said, answer]  # the same seed gives the same text

    page.type(Keys.ARROW_UP)
    page.type(" you", Keys.ENTER)
    edited = page.settles(2)
    assert edited[0] == "Hello you"
    assert edited[1] != answer
    page.say("And?")
    assert page.settles(4)[:2] == edited
    assert logged(page) == []


def test_a_long_conversation_goes_on_without_its_oldest_messages(page):
    turns = [
        {"role": role, "content": f"{i} " + "word " * 600}
        for i in range(4) for role in ("user", "assistant")
    ]  # fmt: skip
    begin(page, turns, max_tokens=4)  # the server's context has 8192 positions
    page.say("And now?")
    answer = page.settles(10)[-1]
    assert answer
    assert "oldest messages are not sent" in page.texts("#notice")[0]
    page.say("And then?")
    assert page.settles(12)[-1]
    assert page.texts("#notice") == [""]  # said once
    page.browser.refresh()
    page.say("And after a reload?")
    assert page.settles(14)[-1]
    assert page.texts("#notice") == [""]


def test_stop_keeps_what_was_said(page):
    page.say("Hello")
    assert eventually(lambda: len(page.texts()) == 2 and len(page.texts()[1]) > 20)
    page.type(Keys.ESCAPE)
    said = page.settles(2)
    assert "stopped" in page.texts(".figures")[0]
    page.browser.refresh()
    assert page.settles(2) == said


def recorded(page):
    """Record the bodies of requests from now on; return a function that returns them."""
    page.run(
        "window.bodies = []; const send = window.fetch; window.fetch = (path, options) => {"
        "if (options.body) window.bodies.push(JSON.parse(options.body));"
        "return send(path, options); }"
    )
    return lambda: page.run("return window.bodies")


def test_a_failed_answer_is_shown_and_not_sent(page):
    refusal = "the fake refuses seed 666"
    begin(page, seed=666, max_tokens=4)
    sent = recorded(page)
    page.say("Hello")
    page.settles(2)
    page.run("const field = document.querySelector('[name=seed]'); field.value = 50;"
             "field.dispatchEvent(new Event('change', { bubbles: true }))")  # fmt: skip
    page.say("Hello again")
    answer = page.settles(4)[3]

    assert answer
    assert [body["messages"] for body in sent()] == [
        [{"role": "user", "content": "Hello"}],
        [{"role": "user", "content": "Hello\n\nHello again"}],
    ]
    assert refusal in page.texts(".error")[0]
    page.browser.refresh()
    page.settles(4)
    assert refusal in page.texts(".error")[0]
    page.click("article:nth-of-type(2) [name=again]")
    assert page.settles(2)[1]
    assert not any(page.texts(".error"))


def test_a_page_that_is_closed_keeps_what_was_said(page, server):
    page.say("Hello")
    assert eventually(lambda: len(page.texts()) == 2 and len(page.texts()[1]) > 20)
    page.browser.refresh()
    kept = page.settles(2)
    assert len(kept[1]) > 20
    assert server.settles("llamacpp:requests_processing", 0)


def test_markdown_becomes_elements(page):
    begin(page, seed=0)
    page.say("Hello")
    page.settles(2)
    text = "article.assistant .text"
    expected = {
        "h2": "Head", "strong": "bold", "em": "slanted", "s": "gone", "p > code": "x < y",
        "ul > li > ol > li": "inner", "blockquote": "said", "th": "a", "td": "1",
        "pre": 'print("<b>")', "figcaption span": "python", "a": "a link",
    }  # fmt: skip

    assert {key: page.texts(f"{text} {key}")[0] for key in expected} == expected
    assert page.find(f"{text} a").get_attribute("href") == "https://example.org/a_(b)"
    assert "both" in page.texts(f"{text} em")[1]


def assert_harmless(page):
    """Assert that nothing of `HOSTILE` was run, loaded, or made an active element."""
    forbidden = "script, img, iframe, svg, style, form, input, object, embed, link, base"
    assert page.run("return window.hit") is None
    assert page.all(", ".join(f".text {tag}" for tag in forbidden.split(", "))) == []
    anchors = page.run("return [...document.querySelectorAll('.text a')].map(a => a.href)")
    assert all(each.startswith(("https://", "http://")) for each in anchors), anchors
    attributes = page.run(
        "return [...document.querySelectorAll('.text *')].flatMap(e => e.getAttributeNames())"
    )
    assert set(attributes) <= {"class", "type", "href", "target", "rel", "title"}
    hosts = "return performance.getEntriesByType('resource').map(e => new URL(e.name).host)"
    assert len(set(page.run(hosts))) == 1
    assert logged(page) == []


def test_a_hostile_answer_stays_text(page):
    begin(page, seed=1)
    page.say("<img src=x onerror='window.hit=20'>")
    said, answer = page.settles(2)

    assert said == "<img src=x onerror='window.hit=20'>"
    for part in ("<script>window.hit = 1</script>", "onerror=", "<iframe", "<svg onload="):
        assert part in answer
    assert_harmless(page)


def test_a_hostile_conversation_in_the_browser_stays_text(page):
    figures = {"tokens": HOSTILE, "device": HOSTILE, "finish": HOSTILE}
    messages = [
        {"role": "user", "content": HOSTILE},
        {"role": "assistant", "content": HOSTILE, "thought": HOSTILE, "figures": figures},
    ]
    begin(page, messages)
    assert len(page.settles(2)) == 2
    assert_harmless(page)


def test_long_texts_of_any_form_are_shown(page):
    assert render(page, [["*a* ", 8]]) == [[3, 4]]  # one paragraph, two emphases: "a a "
    found = render(page, [[unit, SIZE] for unit in BOMBS])

    assert len(found) == len(BOMBS)
    assert all(elements <= SIZE for elements, _ in found)
    # A parser that repeats table text, or makes an endless list, would exceed this limit.
    assert all(characters <= 2 * SIZE for _, characters in found)


def test_a_long_answer_is_kept_and_shown_again(page):
    text = "*a* `b` [c](http://d) " * (SIZE // 22)
    begin(page, [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}])
    assert len(page.settles(2)[1]) > SIZE // 4
    assert len(page.all("article.assistant code")) > 4000


def test_two_tabs_lose_nothing(page):
    begin(page, seed=50, max_tokens=8)
    page.say("First")
    page.settles(2)
    first = page.browser.current_window_handle
    page.browser.switch_to.new_window("tab")
    try:
        other = Page(page.browser, page.url)
        assert eventually(lambda: other.texts("#chats [name=open]") == ["First"])
        assert other.texts() == []  # the second tab begins a new conversation
        other.click("#chats [name=open]")
        other.say("Second")
        assert len(other.settles(4)) == 4
        second = other.browser.current_window_handle
        other.browser.switch_to.window(first)
        # the first tab shows the new messages, too
        assert eventually(lambda: len(page.texts()) == 4)
        # If this tab has not seen a change, its own messages become a second conversation.
        page.run(
            "const key = Object.keys(localStorage).find(k => k.startsWith('npurt.chat.'));"
            "const chat = JSON.parse(localStorage[key]); chat.revision += 1;"
            "localStorage[key] = JSON.stringify(chat)"
        )
        page.say("Third")
        page.settles(6)
        assert page.texts("#chats [name=open]") == ["First", "First"]
    finally:
        page.browser.switch_to.window(second)
        page.browser.close()
        page.browser.switch_to.window(first)


def test_a_key_is_asked_for_and_kept_in_the_tab(browser, tmp_path):
    with serving(tmp_path, address={"keys": ["right"]}, wait=True) as server:
        page = Page(browser, server.url)
        for key in ("wrong", "right"):
            assert eventually(lambda: page.run("return document.querySelector('#ask-key').open"))
            page.find("#key").send_keys(key, Keys.ENTER)
        assert eventually(lambda: page.texts("#where") == ["on fake"])
        begun = page.run("return {...sessionStorage, all: Object.values(localStorage)}")
        assert begun["npurt.key"] == "right"
        assert "right" not in str(begun["all"])
        browser.refresh()
        assert eventually(lambda: page.texts("#where") == ["on fake"])
        page.forget()


def test_a_phone_in_the_dark(page):
    begin(page, [{"role": "assistant", "content": MARKDOWN + "x" * 300 + "\n\n    " + "|a" * 99}])
    device = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        assert page.run("return document.documentElement.scrollWidth") <= 360
        assert (
            page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 25, 28)"
        )
        assert not page.find("#side").is_displayed()
        page.find("#menu").send_keys(Keys.ENTER)
        assert page.find("#side").is_displayed()
        assert page.run("return document.documentElement.scrollWidth") <= 360
        page.type(Keys.ESCAPE)
        assert not page.find("#side").is_displayed()
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_state_of_the_server_is_shown_live(page):
    begin(page, seed=50)
    page.click("#server summary")
    state = "return Object.fromEntries([...document.querySelectorAll('dt')].map("
    state += "e => [e.textContent, e.nextSibling.textContent]))"
    assert eventually(lambda: page.run(state).get("Running") == "0 of 4")
    page.say("Hello")
    assert eventually(lambda: page.run(state)["Running"] == "1 of 4")
    page.click("#stop")
    assert eventually(lambda: page.run(state)["Running"] == "0 of 4")
    found = page.run(state)
    assert (found["Device"], found["Verified products"]) == ("fake", "7")
    assert found["KV cache pages"] == "unknown"


def test_the_user_chooses_one_of_several_models(browser, tmp_path):
    fill(tmp_path, dict.fromkeys(("one", "two"), FILES["a"]))
    with serving(tmp_path, models_dir=tmp_path, step_seconds=0.002) as server:
        page = begin(Page(browser, server.url), seed=1, max_tokens=4)
        assert eventually(lambda: page.texts("#choice option") == ["one", "two"])
        assert not page.run("return document.querySelector('#choice').hidden")
        for name in ("two", "one"):
            page.run("document.querySelector('#choice').value = arguments[0]", name)
            page.run("document.querySelector('#choice').dispatchEvent(new Event('change'))")
            page.click("#new")
            page.say("Hello")
            assert page.settles(2)[1]
            assert eventually(lambda name=name: page.run("return document.title").startswith(name))
            assert eventually(lambda: page.texts("#where") == ["on fake"])
            assert f"{name} is ready" in server.log.read_text()
            page.browser.refresh()
            assert eventually(lambda name=name: page.run(
                "return document.querySelector('#choice').value") == name)  # fmt: skip
        assert not logged(page)
        page.forget()


def test_the_picture_of_the_page_can_be_drawn_again():
    for drawn, picture in zip(
        screenshot.draw(tiny.path("qwen3", "q8_0")), screenshot.PICTURES, strict=True
    ):
        kept = picture.read_bytes()
        assert screenshot.smaller(drawn)[:24] == kept[:24]  # a PNG of the same width and height
        assert len(kept) < 100_000
