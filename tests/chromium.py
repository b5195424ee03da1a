"""A headless Chromium, driven over a pipe by the DevTools protocol: no port, no package but the standard library.

https://chromedevtools.github.io/devtools-protocol/; messages on descriptors 3 and 4 end with a zero byte.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_START_S = 60
_STEP_S = 0.05


def chromium_program() -> str | None:
    """Return the program, None where there is none."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


def _high(descriptor: int) -> int:
    """Return the same open file under a number of two digits."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    finally:
        os.close(descriptor)


class PageError(Exception):
    """A script on a page threw, or the browser refused a command."""


class Chromium:
    """A browser without a network: every name but this machine's own is unknown to it.

    `asked` holds the address of every request of every page that left it.
    """

    def __init__(self, program: str, profile: Path, *, width: int = 1280, height: int = 720) -> None:
        self._requests: dict[tuple[str, str], str] = {}
        self.consoles: list[str] = []
        self._targets: dict[str, tuple[str, str | None]] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._buffer = b""
        self._number = 0
        # High numbers: 3 and 4 are those that the browser wants.
        out_r, out_w = map(_high, os.pipe())
        in_r, in_w = map(_high, os.pipe())
        self._process = self._start(program, profile, out_r, in_w, f"--window-size={width},{height}")
        os.close(out_r)
        os.close(in_w)
        self._to, self._from = out_w, in_r
        self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)

    def _start(
        self, program: str, profile: Path, reads: int, writes: int, *more: str
    ) -> subprocess.Popen[bytes]:
        script = f'exec "$@" 3<&{reads} 4>&{writes}'
        command = [
            program,
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--no-sandbox",  # tests may run as root
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            *more,
            "about:blank",
        ]
        return subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(reads, writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, PageError, subprocess.TimeoutExpired):
            self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    @property
    def asked(self) -> list[str]:
        """The addresses, without the browser's own pages and what needs no network."""
        return self.asked_by(None)

    def asked_by(self, session: str | None) -> list[str]:
        """Return what one page asked for, None for all of them."""
        kinds = ("chrome:", "data:", "blob:", "about:")
        requests = [(who, address) for (who, _), address in self._requests.items()]
        return [a for who, a in requests if session in {None, who} and not a.startswith(kinds)]

    def call(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = self._send(method, session, parameters)
        self.until(lambda: number in self._answers, _START_S, f"an answer to {method}")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']}")
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    def open(self, link: str) -> Page:
        """Open a link in a new tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.until(lambda: target in self._targets, _START_S, "tab")
        page = Page(self, target, self._targets[target][0])
        self.call("Page.navigate", session=self._targets[target][0], url=link)
        return page

    def opened_by(self, page: Page) -> Page:
        """Return the window that a page opened; waits for it."""

        def found() -> Page | None:
            for target, (session, opener) in self._targets.items():
                if opener == page.target:
                    return Page(self, target, session)
            return None

        child = self.until(found, _START_S, "window that the page opened")
        assert isinstance(child, Page)
        return child

    def until(self, condition: Callable[[], Any], wait_s: float, what: str) -> Any:
        """Wait until a condition holds, hearing the browser meanwhile; returns what it gave."""
        deadline = time.monotonic() + wait_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} within {wait_s} s; the consoles said: {self.consoles[-5:]}")
            self._hear()
        return found

    def _send(self, method: str, session: str | None, parameters: dict[str, Any]) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        return self._number

    def _hear(self) -> None:
        if not select.select([self._from], [], [], _STEP_S)[0]:
            return
        data = os.read(self._from, 1 << 20)
        if not data:
            raise PageError("the browser ended")
        *whole, self._buffer = (self._buffer + data).split(b"\0")
        for message in map(json.loads, whole):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._event(message["method"], message["params"], message.get("sessionId", ""))

    def _event(self, method: str, parameters: dict[str, Any], session: str) -> None:
        if method == "Network.requestWillBeSent":
            self._requests[session, parameters["requestId"]] = parameters["request"]["url"]
        elif method == "Network.loadingFailed" and parameters.get("blockedReason") == "csp":
            self._requests.pop((session, parameters["requestId"]), None)
        elif method == "Runtime.consoleAPICalled":
            words = [str(a.get("value", a.get("description"))) for a in parameters["args"]]
            self.consoles.append(" ".join(words))
        elif method == "Runtime.exceptionThrown":
            self.consoles.append(str(parameters["exceptionDetails"]))
        elif method == "Target.attachedToTarget":
            child = parameters["sessionId"]
            for name in ("Network.enable", "Runtime.enable", "Page.enable"):
                self._send(name, child, {})
            nested = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
            self._send("Target.setAutoAttach", child, nested)
            self._send("Runtime.runIfWaitingForDebugger", child, {})
            info = parameters["targetInfo"]
            if info["type"] == "page":
                self._targets[info["targetId"]] = (child, info.get("openerId"))


class Page:
    """One tab."""

    def __init__(self, browser: Chromium, target: str, session: str) -> None:
        self.target = target
        self._browser = browser
        self._session = session

    @property
    def asked(self) -> list[str]:
        """The addresses that this page asked for."""
        return self._browser.asked_by(self._session)

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, awaited."""
        answer = self._browser.call(
            "Runtime.evaluate",
            session=self._session,
            expression=script,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in answer:
            raise PageError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, script: str, what: str, wait_s: float = _START_S) -> Any:
        """Wait until an expression is true; returns its value."""

        def holds() -> Any:
            try:
                return self.run(script)
            except PageError:  # the page is being replaced by another
                return None

        return self._browser.until(holds, wait_s, what)

    def screenshot(self) -> bytes:
        """Return what the page shows, as a PNG."""
        answer = self._browser.call("Page.captureScreenshot", session=self._session, format="png")
        return base64.b64decode(answer["data"])

    def press(self, selector: str) -> None:
        """Click on the middle of an element, as a user does."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.run(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({box})")
        for kind in ("mousePressed", "mouseReleased"):
            self._browser.call(
                "Input.dispatchMouseEvent",
                session=self._session,
                type=kind,
                x=x,
                y=y,
                button="left",
                clickCount=1,
            )

    def type(self, text: str) -> None:
        """Press the keys of a text; a carriage return is Enter."""
        for character in text:
            key: dict[str, Any] = {"text": character, "key": "Enter" if character == "\r" else character}
            if character == "\r":
                key["windowsVirtualKeyCode"] = 13
            for kind in ("keyDown", "keyUp"):
                self._browser.call("Input.dispatchKeyEvent", session=self._session, type=kind, **key)
