"""Write docs/page.png and docs/page-phone.png: the chat page in Chromium, with a model on the CPU.

python -m tests.serve.screenshot    # in a checkout with the models: make models
"""

import contextlib
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
from selenium.webdriver.common.keys import Keys

from tests.blocks import PROJECT
from tests.limits import eventually
from tests.serve.browser import Page, chromium
from tests.serve.live import Live

PICTURES = PROJECT / "docs/page.png", PROJECT / "docs/page-phone.png"
MODEL = PROJECT / "models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"
QUESTION = "Write a Python function that yields the Fibonacci numbers."
SIZE = (940, 760)  # pixels, with the window's frame
PHONE = {"width": 360, "height": 640, "deviceScaleFactor": 1, "mobile": True}
SETTINGS = ("--temp", "0", "-n", "180", "-c", "2048", "--port", "0")


@contextlib.contextmanager
def server(model, log):
    """Yield a running `npurt serve`, once its model is loaded."""
    command = [sys.executable, "-m", "npurt", "serve", "-m", model, *SETTINGS]
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        live = Live(process, log)
        assert eventually(lambda: live.health() == 200)
        yield live
    finally:
        process.terminate()
        process.wait()


def draw(model):
    """Return PNGs of the page after an answer of *model*: with the status, and on a dark phone."""
    with (
        tempfile.TemporaryDirectory() as folder,
        server(model, Path(folder, "log.txt")) as live,
        chromium(Path(folder, "profile")) as browser,
    ):
        browser.set_window_size(*SIZE)
        page = Page(browser, live.url)
        page.type(QUESTION, Keys.ENTER)
        page.settles(2)
        page.click("#server summary")
        assert live.settles("llamacpp:requests_processing", 0)
        wide = browser.get_screenshot_as_png()
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
        page.run("document.documentElement.dataset.theme = 'dark'")
        return wide, browser.get_screenshot_as_png()


def smaller(png):
    """Return *png*, of Chromium (8 bits, RGB), with a palette of at most 256 colours.

    Source of the format: PNG (Third Edition), w3.org/TR/png-3.
    """
    width, height = struct.unpack(">II", png[16:24])
    assert png[24:26] == b"\x08\x02", "the picture is not RGB with 8 bits"
    data, at = b"", 8
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        data += png[at + 8 : at + 8 + size] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += 12 + size
    rows = _unfiltered(np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, -1))
    for bits in (0, 1, 2, 3, 4):  # the fewest dropped bits that leave 256 colours
        kept = rows.reshape(-1, 3) >> bits
        colours, indices = np.unique(kept, axis=0, return_inverse=True)
        if len(colours) <= 256:
            break
    white = (255 >> bits) or 1
    palette = (colours.astype(int) * 255 // white).astype(np.uint8).tobytes()
    lines = np.insert(indices.reshape(height, width).astype(np.uint8), 0, 0, axis=1)
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": palette,
        b"IDAT": zlib.compress(lines.tobytes(), 9),
        b"IEND": b"",
    }
    return png[:8] + b"".join(
        struct.pack(">I", len(value)) + name + value + struct.pack(">I", zlib.crc32(name + value))
        for name, value in chunks.items()
    )


def _unfiltered(rows):
    """Return rows ``[H, 1 + 3 W]`` of a PNG without their filters, ``[H, 3 W]``."""
    above = np.zeros(rows.shape[1] - 1, int)
    found = []
    for kind, *given in rows.astype(int):
        line = np.array(given)
        if kind == 2:
            line += above
        elif kind:
            for i in range(len(line)):
                left, corner = (line[i - 3], above[i - 3]) if i >= 3 else (0, 0)
                near = left + above[i] - corner
                order = (abs(near - left), abs(near - above[i]), abs(near - corner))
                paeth = (left, above[i], corner)[order.index(min(order))]
                line[i] += {1: left, 3: (left + above[i]) // 2, 4: paeth}[kind]
                line[i] &= 255
        above = line & 255
        found.append(above)
    return np.array(found, np.uint8)


if __name__ == "__main__":
    for picture, drawn in zip(PICTURES, draw(MODEL), strict=True):
        picture.write_bytes(smaller(drawn))
