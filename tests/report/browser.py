"""A small driver for headless Chromium: the DevTools protocol over two pipes, no library needed."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE_S = 60.0
KEYS = {"Enter": ("Enter", 13, "\r"), "Space": (" ", 32, " "), "Tab": ("Tab", 9, ""), "Escape": ("Escape", 27, "")}


class BrowserError(Exception):
    """What the browser refused, or did not do in time."""


def find_chromium() -> str | None:
    """The path of Chromium or Chrome, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A running Chromium; commands go in and messages come back one JSON object at a time."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="corewise-browser-")
        their_input, self._to = os.pipe()
        self._from, their_output = os.pipe()
        # Away from 3 and 4 first: those two are the ends that Chromium expects.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (their_input, their_output)]
        silence = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, silence, out) for out in (0, 1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, end, name) for end, name in zip(ends, (3, 4), strict=True)]
        arguments = [program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._pid = os.posix_spawn(program, arguments, os.environ, file_actions=actions, setpgroup=0)
        for end in (their_input, their_output, silence, *ends):
            os.close(end)
        self._rest = b""
        self._last_id = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """What the browser answers to one command; events that come meanwhile are kept."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self._message(until)
            if answer is None:
                raise BrowserError(f"{method}: no answer within {PATIENCE_S:.0f} s")
            if answer.get("id") != self._last_id:
                self.events.append(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']['message']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def _message(self, until: float) -> dict[str, Any] | None:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            data = os.read(self._from, 1 << 20)
            if not data:
                raise BrowserError("Chromium has ended")
            self._rest += data
        text, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def new_page(self, width_px: int = 1280, height_px: int = 900, dark: bool = False) -> "Page":
        """Open an empty page with separate storage."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, context)
        page.resize(width_px, height_px)
        page.media(dark=dark)
        return page

    def close(self) -> None:
        """End the browser and all that it started."""
        os.close(self._to)
        os.close(self._from)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._profile, ignore_errors=True)


@contextmanager
def running_browser(program: str) -> Iterator[Browser]:
    """A browser that is gone at the end."""
    browser = Browser(program)
    try:
        yield browser
    finally:
        browser.close()


class Page:
    """One page: goes to a file, runs scripts, presses keys, and remembers what went wrong."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser, self._session, self._context = browser, session, context
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command to this page."""
        return self._browser.call(method, self._session, **params)

    def close(self) -> None:
        """Let go of the page and of all it stored."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)
        self._browser.events = [e for e in self._browser.events if e.get("sessionId") != self._session]

    def open(self, path: Path, ready: str = "document.documentElement.classList.contains('ready')") -> None:
        """Go to a file and wait until a script says that it is ready."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait(f"location.protocol === 'file:' && document.readyState === 'complete' && ({ready})")

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            details = done["exceptionDetails"]
            raise BrowserError(f"{script}: {details.get('exception', {}).get('description', details['text'])}")
        return done["result"].get("value")

    def wait(self, script: str) -> None:
        """Come back as soon as an expression is true."""
        until, said = time.monotonic() + PATIENCE_S, ""
        while time.monotonic() < until:
            try:
                if self.run(f"Boolean({script})"):
                    return
            # The page may just be replaced by the next one.
            except BrowserError as error:
                said = f": {error}"
            time.sleep(0.02)
        raise BrowserError(f"never true: {script}{said}")

    def press(self, key: str, shift: bool = False) -> None:
        """Press and release one key."""
        name, code, text = KEYS[key]
        common = {"key": name, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def point_at(self, x_px: float, y_px: float) -> None:
        """Move the pointer there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x_px, y=y_px)

    def resize(self, width_px: int, height_px: int) -> None:
        """Make the window so large; narrow ones count as phones."""
        size = {"width": width_px, "height": height_px, "deviceScaleFactor": 1, "mobile": width_px < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def media(self, dark: bool = False, medium: str = "", still: bool = True) -> None:
        """What the system prefers, and the medium it is shown on."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Keep what the page looks like, all of it or the window's part."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """The page as printed on A4."""
        made = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=False)
        return base64.b64decode(made["data"])

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [event["params"]["request"]["url"] for event in self._seen("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Every error of the console: scripts that failed, what the policy forbade, what was logged."""
        found = [event["params"]["exceptionDetails"]["text"] for event in self._seen("Runtime.exceptionThrown")]
        for event in self._seen("Runtime.consoleAPICalled"):
            if event["params"]["type"] in {"error", "assert"}:
                found.append(str([value.get("value") for value in event["params"]["args"]]))
        found += [event["params"]["entry"]["text"] for event in self._seen("Log.entryAdded")]
        return found

    def _seen(self, method: str) -> list[dict[str, Any]]:
        self.run("0")
        return [
            event
            for event in self._browser.events
            if event.get("method") == method and event.get("sessionId") == self._session
        ]
