"""A real Chromium without a window, driven over its debugging pipe: pages are opened, used and looked at."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
KEY_CODES = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class RefusedError(Exception):
    """What the browser does not do."""


class Browser:
    """One page of one Chromium process; a context manager.

    Attributes:
        console: everything that pages wrote to the console, and every exception that nobody caught.
        requests: addresses that pages asked for, their own included.
    """

    def __init__(self, profile: Path, width: int = 1280, height: int = 900) -> None:
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        assert program, f"the tests need one of {', '.join(PROGRAMS)} on PATH: make services"
        self.console: list[str] = []
        self.requests: list[str] = []
        self._next = 0
        self._rest = b""
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # Chromium speaks on its descriptors 3 and 4.
        moved = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", moved, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Give the page this size, in CSS pixels."""
        scale = 2 if mobile else 1
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=mobile,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """Have the system prefer ``dark`` or ``light``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, address: str | Path) -> None:
        """Load a page, and wait until its load event."""
        address = address.as_uri() if isinstance(address, Path) else address
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + 60
        loaded = "complete" + address.partition("#")[0]
        while not self._shows(loaded):
            assert time.monotonic() < deadline, f"{address} does not load"
            time.sleep(0.02)

    def _shows(self, loaded: str) -> bool:
        try:
            return bool(self.run("document.readyState + location.href.split('#')[0]") == loaded)
        except RefusedError:  # there is no page between two pages
            return False

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def text(self, selector: str) -> str:
        """The text that a person sees in the first element that matches; empty if none does."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            about: dict[str, Any] = {"key": key}
            if key in KEY_CODES:
                about |= {"windowsVirtualKeyCode": KEY_CODES[key], "code": key}
            letter = {"text": "\r"} if key == "Enter" else ({} if key in KEY_CODES else {"text": key})
            self.call("Input.dispatchKeyEvent", type="keyDown", **about, **letter)
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def click(self, selector: str) -> None:
        """Click the middle of the first element that matches."""
        found = f"document.querySelector({json.dumps(selector)})"
        box = self.run(
            f"(() => {{ const e = {found}; e.scrollIntoView({{block: 'nearest'}});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        place = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **place)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **place)

    def picture(self, path: Path) -> None:
        """Save what is seen as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the debugging protocol; events that come before its answer are kept."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RefusedError(answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._in, 1 << 20)
            assert data, "Chromium ended"
            self._rest += data
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                self.console.append(" ".join(str(item.get("value")) for item in about["args"]))
            case "Runtime.exceptionThrown":
                self.console.append(json.dumps(about["exceptionDetails"])[:2000])
            case "Log.entryAdded":
                self.console.append(str(about["entry"]["text"]))
            case "Network.requestWillBeSent":
                self.requests.append(str(about["request"]["url"]))
            case _:
                pass

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._in)
