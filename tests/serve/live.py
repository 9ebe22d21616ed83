"""A server on loopback, started by `npurt serve`, with the fake engine or a real model."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

from tests.limits import HANG_SECONDS, eventually
from tests.llm import tiny

START = """
import json, logging, sys
from npurt.serve.http.address import Address
from npurt.serve.run import Start, run
from npurt.serve.front.front import ServerSettings
from npurt.serve.http import limits
from npurt.serve.front.served_model import ServedModel
logging.basicConfig(level=logging.WARNING, format="npurt: %(message)s")
given = json.loads(sys.argv[1])
if given["files"]:
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, given["files"])
if given["models_dir"]:
    from npurt.serve.router.folder import scan
    model, _ = scan(__import__("pathlib").Path(given["models_dir"]))
else:
    model = ServedModel(__import__("pathlib").Path(given["path"]), "tiny", given["template"])
limits.HEAD_SECONDS = given["head"]
limits.SEND_SECONDS = given["send"]
command = [sys.executable, "-m", given["engine"]]
sys.exit(run(Start(model, Address(port=0, **given["address"]), given["options"],
                   ServerSettings(**given["settings"]), 120.0, command)))
"""


class Live:
    """A running server: its `url`, its process, and its output."""

    def __init__(self, process, log):
        self.process = process
        self.log = log
        found = []
        assert eventually(lambda: found or process.poll() is not None or found.extend(
            re.findall(r"(?:on port |http://[\d.]+:)(\d+)", log.read_text())))  # fmt: skip
        self.url = f"http://127.0.0.1:{found[0]}"

    def post(self, path, body):
        """Return the status and the JSON of the answer to *body*."""
        asked = urllib.request.Request(self.url + path, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(asked, timeout=HANG_SECONDS) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def health(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=HANG_SECONDS) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def settles(self, name, value):
        """Return whether a metric reaches *value* before a timeout."""

        def current():
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=HANG_SECONDS) as reply:
                lines = reply.read().decode().splitlines()
            return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

        return eventually(lambda: current() == value)

    def engine(self):
        """Return the process id of the engine; None while no engine runs."""
        pid = self.process.pid
        with (
            contextlib.suppress(OSError, IndexError),
            open(f"/proc/{pid}/task/{pid}/children") as file,
        ):
            return int(file.read().split()[0])
        return None

    def kill_engine(self):
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(self.engine(), signal.SIGKILL)


@contextlib.contextmanager
def serving(
    folder,
    *,
    engine="tests.serve.fake_engine",
    template="chatml",
    model="llama3",
    path=None,
    wait=True,
    address=None,
    settings=None,
    head_seconds=30.0,
    models_dir=None,
    send_seconds=30.0,
    files=None,
    **options,
):  # fmt: skip
    """Yield a `Live` server of the model in the file *path*, or of the tiny model *model*."""
    given = {
        "path": str(path or tiny.path(model, "q8_0")), "template": template, "engine": engine,
        "options": options, "address": address or {}, "settings": settings or {},
        "head": head_seconds, "models_dir": models_dir and str(models_dir),
        "send": send_seconds, "files": files,
    }  # fmt: skip
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", START, json.dumps(given)], stderr=file)
    try:
        live = Live(process, log)
        if wait:
            assert eventually(lambda: live.health() == 200 or process.poll() is not None)
        yield live
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
        process.wait(HANG_SECONDS)
