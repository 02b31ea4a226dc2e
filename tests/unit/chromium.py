"""Headless Chromium driven over its DevTools protocol by two pipes, which needs no package and opens no port."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 30.0

# The browser reads its commands from descriptor 3 and answers on 4.
_START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find() -> str | None:
    """Return the browser's path, None where none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One empty tab. `events` is everything that the browser told of it so far."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest = write, read, b""
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = None
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, page: Path, *, width: int, height: int, scheme: str = "light") -> None:
        """Show a file in a viewport of that size, in CSS pixels, with colour scheme `light` or `dark`."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self._call("Page.navigate", url=page.resolve().as_uri())
        end = time.monotonic() + _SECONDS
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < end, "the page did not load"
            self._call("Runtime.evaluate", expression="0")

    def value(self, expression: str) -> Any:
        """Return what a JavaScript expression gives in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def list_events(self, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of the events of those names."""
        self.value("0")  # what came before this answer has been read
        return [event["params"] for event in self.events if event["method"] in methods]

    def picture(self) -> bytes:
        """Return the whole page as PNG."""
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == number:
                assert "error" not in found, found
                return found["result"]
            if "method" in found:
                self.events.append(found)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 20)
            assert data, "the browser ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextmanager
def opened(program: str, folder: Path) -> Generator[Tab]:
    """Run the browser with a profile in `folder` for the `with` block and give a tab of it."""
    inward, outward = os.pipe(), os.pipe()
    command = [
        *(sys.executable, "-c", _START, str(inward[0]), str(outward[1]), program),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
        *("--no-first-run", "--disable-background-networking", f"--user-data-dir={folder}"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, pass_fds=(inward[0], outward[1]), stdout=log, stderr=log)
    os.close(inward[0])
    os.close(outward[1])
    try:
        yield Tab(inward[1], outward[0])
    finally:
        os.close(inward[1])  # without its commands the browser ends
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        os.close(outward[0])
