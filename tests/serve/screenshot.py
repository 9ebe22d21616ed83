"""Write docs/page.png: the chat page in Chromium, with a model that answers on the CPU.

python -m tests.serve.screenshot    # in a checkout with the models: make models
"""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.blocks import PROJECT
from tests.limits import eventually
from tests.serve.browser import Page, chromium
from tests.serve.live import Live

PICTURE = PROJECT / "docs/page.png"
MODEL = PROJECT / "models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"
QUESTION = "Write a Python function that yields the Fibonacci numbers."
SIZE = (1000, 800)  # pixels, with the window's frame
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
    """Return a PNG of the page after an answer of *model*, with the server's status shown."""
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
        return browser.get_screenshot_as_png()


if __name__ == "__main__":
    PICTURE.write_bytes(draw(MODEL))
