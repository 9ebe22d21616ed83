"""Run headless Chromium through selenium; `.ci/chromium` installs Chromium."""

import contextlib
import json
import shutil

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.limits import HANG_SECONDS, eventually


@contextlib.contextmanager
def chromium(folder):
    """Yield a driver of a browser whose profile is in *folder*."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.fail("the tests of the page need chromium and chromedriver: run .ci/chromium")
    options = ChromeOptions()
    options.binary_location = program
    # These options are needed as root, and in a container with little shared memory.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={folder}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = Chrome(options, ChromeService(driver))
    browser.set_script_timeout(HANG_SECONDS)
    try:
        yield browser
    finally:
        browser.quit()


class Page:
    """The chat page in the current browser tab."""

    def __init__(self, browser, url):
        self.browser = browser
        self.url = url
        browser.get(url)

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def texts(self, selector="article .text"):
        """Return the text of all matching elements, read at the same moment."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )

    def type(self, *keys):
        self.find("#text").send_keys(*keys)

    def say(self, text):
        self.type(text, Keys.ENTER)

    @property
    def idle(self):
        return self.run("return document.querySelector('#stop').hidden")

    def settles(self, count):
        """Wait until there are *count* messages and none grows; return their texts."""
        assert eventually(lambda: self.idle and len(self.texts()) == count), self.texts()
        return self.texts()

    def click(self, selector):
        self.run("document.querySelector(arguments[0]).click()", selector)

    def keep(self, store, key, value):
        self.run("window[arguments[0]].setItem(arguments[1], arguments[2])", store, key,
                 json.dumps(value))  # fmt: skip

    def forget(self):
        """Leave the page and delete what it stored in the browser."""
        self.browser.get(f"{self.url}/page/icon.svg")
        self.run("localStorage.clear(); sessionStorage.clear()")
