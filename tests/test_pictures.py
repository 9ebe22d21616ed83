"""Test the pictures of the documentation by their pixels, as a browser shows them in an <img>."""

import base64
import html
import re
from pathlib import Path

import pytest

from tests.serve.browser import chromium
from tests.test_docs import DOCUMENTS

PROJECT = Path(__file__).resolve().parents[1]
PICTURES = sorted(
    {
        (page.parent / target).resolve()
        for page in DOCUMENTS
        for target in re.findall(r"!\[[^\]]*\]\(([^)#]+)\)", page.read_text())
    }
)
KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
SCALE = 2
# Returns [width, height, pixels], where a pixel is the sum of its differences from the background.
READ = """
const [url, scale, done] = arguments;
const image = new Image();
image.onerror = () => done("the browser refuses the picture");
image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = image.naturalWidth * scale;
    canvas.height = image.naturalHeight * scale;
    const paper = canvas.getContext("2d");
    paper.drawImage(image, 0, 0, canvas.width, canvas.height);
    const data = paper.getImageData(0, 0, canvas.width, canvas.height).data;
    const at = 4 * (canvas.width * Math.floor(canvas.height / 2) + 4);
    const pixels = [];
    for (let i = 0; i < data.length; i += 4)
        pixels.push([0, 1, 2].reduce((n, c) => n + Math.abs(data[i + c] - data[at + c]), 0));
    done([canvas.width, canvas.height, pixels]);
};
image.src = url;
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return a function that maps a picture to its width, height and pixels in a browser."""
    with chromium(tmp_path_factory.mktemp("profile")) as browser:

        def read(content, kind):
            data = base64.b64encode(content).decode()
            found = browser.execute_async_script(READ, f"data:{kind};base64,{data}", SCALE)
            assert isinstance(found, list), found
            return found

        yield read


def misplaced(text, width, pixels):
    """Return the columns of each line of an SVG's text that wrongly have ink, or lack it.

    A line must have ink in each column with a character, and none in the middle of the others.
    """
    wrong = []
    pattern = r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>'
    for x, y, line in re.findall(pattern, text):
        written = html.unescape(line)
        step = 7.23
        for column, character in enumerate(written):
            left = (float(x) + (column + 0.3) * step) * SCALE
            right = (float(x) + (column + 0.7) * step) * SCALE
            rows = range(round((float(y) - 10) * SCALE), round((float(y) + 3) * SCALE))
            ink = any(
                pixels[row * width + at] > 90 for row in rows for at in range(int(left), int(right))
            )
            if ink == character.isspace():
                wrong.append((written[max(0, column - 5) : column + 5], column))
    return wrong


def test_the_documents_have_pictures():
    assert {path.name for path in PICTURES} >= {"picture.svg", "page.png"}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_browser_shows_every_picture(path, shown):
    width, height, pixels = shown(path.read_bytes(), KINDS[path.suffix])

    assert width > 300 * SCALE
    assert height > 150 * SCALE
    assert sum(pixel > 90 for pixel in pixels) > len(pixels) / 100  # something is drawn on it
    edge = [pixels[row * width + width - 8] for row in range(16, height - 16)]
    assert path.suffix != ".svg" or max(edge) < 90  # no text is cut at the right edge


@pytest.mark.parametrize(
    "path", [path for path in PICTURES if path.suffix == ".svg"], ids=lambda path: path.name
)
def test_every_character_of_a_picture_is_in_its_column(path, shown):
    width, _, pixels = shown(path.read_bytes(), KINDS[".svg"])

    assert misplaced(path.read_text(), width, pixels) == []


def test_columns_that_a_browser_joins_are_seen(shown):
    text = (PROJECT / "docs/picture.svg").read_text()
    text = re.sub(r' textLength="[^"]+"', "", text.replace("\u00a0", " "))
    width, _, pixels = shown(text.encode(), KINDS[".svg"])

    assert len(misplaced(text, width, pixels)) > 100
