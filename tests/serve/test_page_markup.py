"""Code and formulas in answers on the chat page: colours and MathML, made of nodes only."""

import pytest

from tests.serve.browser import Page, chromium
from tests.serve.live import serving

MODULES = {"colored": "/page/code.js", "math": "/page/math.js", "markdown": "/page/markdown.js"}
CODE = {
    "python": "def f(x=1.5):  # of \"x\"\n    return '''a\ndef''' + \"b\\\\\"\"",
    "js": "const a = `x ${y}`; // for\n/* if\n */ return 0xff",
    "sh": "if [ $x ]; then echo 'for' # done\nfi",
    "sql": "SELECT a FROM b WHERE c = 'd' -- from",
    "html": '<!-- a -->\n<a href="b">',
    "diff": "@@ -1 +1 @@\n-a\n+b\n c",
}
SPANS = {
    "python": [
        ["keyword", "def"],
        ["number", "1.5"],
        ["comment", '# of "x"'],
        ["keyword", "return"],
        ["string", "'''a\ndef'''"],
        ["string", '"b\\\\"'],
        ["string", '"'],
    ],
    "js": [
        ["keyword", "const"],
        ["string", "`x ${y}`"],
        ["comment", "// for"],
        ["comment", "/* if\n */"],
        ["keyword", "return"],
        ["number", "0xff"],
    ],
    "sh": [
        ["keyword", "if"],
        ["keyword", "then"],
        ["string", "'for'"],
        ["comment", "# done"],
        ["keyword", "fi"],
    ],
    "sql": [
        ["keyword", "SELECT"],
        ["keyword", "FROM"],
        ["keyword", "WHERE"],
        ["string", "'d'"],
        ["comment", "-- from"],
    ],
    "html": [["comment", "<!-- a -->"], ["string", '"b"']],
    "diff": [["comment", "@@ -1 +1 @@\n"], ["removed", "-a\n"], ["added", "+b\n"]],
}
FORMULAS = {
    "x^2": "<msup><mi>x</mi><mn>2</mn></msup>",
    "a_i^{n+1}": "<msubsup><mi>a</mi><mi>i</mi>"
    "<mrow><mi>n</mi><mo>+</mo><mn>1</mn></mrow></msubsup>",
    r"\frac{1}{2}": "<mfrac><mn>1</mn><mn>2</mn></mfrac>",
    r"\sqrt[3]{x}": "<mroot><mi>x</mi><mn>3</mn></mroot>",
    r"\alpha\le\infty": "<mrow><mi>α</mi><mo>≤</mo><mi>∞</mi></mrow>",
    r"\sum_{i}^n": '<munderover><mo largeop="true" movablelimits="true">∑</mo><mi>i</mi><mi>n</mi>'
    "</munderover>",
    r"\mathbb{R}\mathbf{v2}": "<mrow><mi>ℝ</mi><mi>𝐯𝟐</mi></mrow>",
    r"\text{if } x": "<mrow><mtext>if&nbsp;</mtext><mi>x</mi></mrow>",
    "f'": "<msup><mi>f</mi><mo>′</mo></msup>",
    r"\left(a\right.": '<mrow><mo fence="true" stretchy="true">(</mo><mi>a</mi></mrow>',
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": '<mrow><mo fence="true" stretchy="true">(</mo><mtable>'
    "<mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr>"
    "<mtr><mtd><mn>3</mn></mtd><mtd><mn>4</mn></mtd></mtr></mtable>"
    '<mo fence="true" stretchy="true">)</mo></mrow>',
    r"\unknown{x}": r"<mrow><mtext>\unknown</mtext><mi>x</mi></mrow>",
    "<img src=x>": "<mrow><mo>&lt;</mo><mi>i</mi><mi>m</mi><mi>g</mi><mi>s</mi><mi>r</mi><mi>c</mi>"
    "<mo>=</mo><mi>x</mi><mo>&gt;</mo></mrow>",
}
BROKEN = [
    "",
    "{",
    "}",
    "^",
    "_",
    "\\",
    r"\frac",
    r"\frac{1}",
    r"\sqrt[",
    r"\left",
    r"\left(",
    r"\right)",
    r"\begin{matrix}1&",
    r"\begin{x}",
    r"\begin",
    r"\end{matrix}",
    r"\text{",
    "&",
    "a^b^c_d_e",
    "{" * 500,
    "a^{" * 500,
    r"\frac" * 500,
    "a'" * 500,
    r"\begin{matrix}" * 100,
]
PROSE = {
    "It costs $5 or $10.": [],
    "a $x$ and $y$": ["x", "y"],
    "$ x $": [],
    "$x$5": [],
    "`$x$`": [],
    r"\(a\) and \[b\]": ["a", "b"],
    "$$c$$": ["c"],
    "text $$d$$ text": ["d"],
    "$$\ne\n$$": ["e"],
    "\\[\nf\n\\]\nafter": ["f"],
    "$$ open": [],
    r"\( open": [],
    r"\$x\$": [],
    "| $a$ | b |\n|-|-|": ["a"],
    "$a*b$ and *c*": ["a*b"],
    "- $x$\n- $y$": ["x", "y"],
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with serving(folder) as server, chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield Page(browser, server.url)


def call(page, name, result, inputs):
    """Return *result*, JavaScript of `made`, for each list of arguments of the function *name*."""
    return page.browser.execute_async_script(
        f"""
        const [inputs, done] = arguments;
        import("{MODULES[name]}").then(({{ {name} }}) => done(inputs.map((input) => {{
            const made = document.createElement("div");
            for (const each of [{name}(...input)].flat()) made.append(each);
            return {result};
        }})));
        """,
        inputs,
    )


def test_code_is_coloured_by_its_language(page):
    spans = "[...made.children].map(e => [e.className, e.textContent])"
    inputs = [[text, name] for name, text in CODE.items()]
    assert dict(zip(CODE, call(page, "colored", spans, inputs), strict=True)) == SPANS
    assert call(page, "colored", "made.textContent", inputs) == list(CODE.values())


def test_code_in_an_unknown_language_or_too_long_is_left_as_it_is(page):
    inputs = [
        ["if x", ""],
        ["if x", "text"],
        ["if x", "constructor"],
        ["if x\n" * 20_000, "python"],
    ]
    assert call(page, "colored", "made.children.length", inputs) == [0] * 4
    named = [["if x", "Python title=a"], ["if x", "python,ignore"], ["if x", "python {1}"]]
    assert call(page, "colored", "made.children.length", named) == [1] * 3


def test_long_code_of_any_form_is_coloured(page):
    units = [
        '"',
        "'",
        "/*",
        "*/",
        "//",
        "#",
        "\\",
        "`",
        '"\\',
        '"""',
        "a",
        "1",
        "<!--",
        "+\n",
        "if ",
    ]
    inputs = [[(unit * 50_000)[:50_000], name] for unit in units for name in CODE]
    assert set(call(page, "colored", "made.textContent.length", inputs)) == {50_000}


def test_formulas_become_mathml(page):
    inner = "made.firstChild.innerHTML"
    found = call(page, "math", inner, [[tex, False] for tex in FORMULAS])
    assert dict(zip(FORMULAS, found, strict=True)) == FORMULAS
    displays = call(
        page, "math", "made.firstChild.getAttribute('display')", [["x", True], ["x", False]]
    )
    assert displays == ["block", None]


def test_broken_formulas_are_shown(page):
    assert len(call(page, "math", "made.textContent", [[tex, True] for tex in BROKEN])) == len(
        BROKEN
    )
    long = "x" * 6000
    assert call(page, "math", "made.innerHTML", [[long, False]]) == (
        [f"<math><mtext>{long}</mtext></math>"]
    )


def test_formulas_in_prose_are_told_from_amounts_of_money(page):
    result = "[...made.querySelectorAll('math')].map(e => e.textContent)"
    inputs = [[text] for text in PROSE]
    found = call(page, "markdown", result, inputs)
    assert dict(zip(PROSE, found, strict=True)) == {
        text: [tex.replace("*", "*") for tex in formulas] for text, formulas in PROSE.items()
    }
