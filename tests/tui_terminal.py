"""A real terminal without a screen: tmux, of which every test has a server of its own."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from support import lacking

_LOOK_S = 0.05
_WAIT_S = 120.0


class Terminal:
    """One program in a terminal of (columns, rows); `status` is how it ended."""

    def __init__(
        self,
        folder: Path,
        *command: str,
        size: tuple[int, int] = (100, 30),
        env: dict[str, str] | None = None,
    ) -> None:
        if shutil.which("tmux") is None:
            lacking("no tmux on the PATH")
        # Its socket is a file: in a folder of the test, with a name that is short enough for one.
        self._tmux = ["tmux", "-u", "-S", f"/tmp/mlbundle-test-{secrets.token_hex(4)}", "-f", os.devnull]
        self._ended = folder / "ended"
        self._ended.unlink(missing_ok=True)
        # What readline, which pytest imports, says of the size that its own terminal has.
        inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        variables = {**inherited, "TERM": "tmux-256color", **(env or {})}
        line = f"{shlex.join(command)}; echo $? > {shlex.quote(str(self._ended))}; exec sleep 600"
        columns, rows = map(str, size)
        subprocess.run(
            [*self._tmux, "new-session", "-d", "-s", "test", "-x", columns, "-y", rows, "sh", "-c", line],
            env=variables,
            cwd=folder,
            check=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run("kill-server", check=False)
        Path(self._tmux[3]).unlink(missing_ok=True)

    def press(self, *keys: str) -> None:
        """Press keys, named as tmux names them."""
        self._run("send-keys", "-t", "test", *keys)

    def press_and_see(self, key: str) -> None:
        """Press a key and wait until something else is shown: what is typed next is for that."""
        before = self.text()
        self.press(key)
        self.until(lambda shown: shown != before, f"what {key} does")

    def type(self, text: str) -> None:
        """Press the keys of a text."""
        self._run("send-keys", "-t", "test", "-l", text)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        self._run("resize-window", "-t", "test", "-x", str(columns), "-y", str(rows))

    def text(self, *, escapes: bool = False) -> str:
        """Return what the terminal shows; `escapes`: with the sequences that colour it."""
        return self._run("capture-pane", "-p", *(["-e"] if escapes else []), "-t", "test")

    def until_pressed(self, key: str, text: str) -> str:
        """Press a key again and again until a text is shown."""
        deadline = time.monotonic() + _WAIT_S
        while text not in (shown := self.text()):
            assert time.monotonic() < deadline, f"{text} did not come; shown is\n{shown}"
            self.press(key)
            time.sleep(10 * _LOOK_S)
        return shown

    def wait_for(self, *texts: str, wait_s: float = _WAIT_S) -> str:
        """Wait until all the texts are shown; returns what is shown then."""
        return self.until(lambda shown: all(text in shown for text in texts), f"{texts}", wait_s)

    def until(self, holds: Callable[[str], bool], what: str, wait_s: float = _WAIT_S) -> str:
        """Wait until what is shown is as wanted; returns it."""
        deadline = time.monotonic() + wait_s
        while not holds(shown := self.text()):
            assert time.monotonic() < deadline, f"{what} did not come; shown is\n{shown}"
            time.sleep(_LOOK_S)
        return shown

    def wait_for_end(self, wait_s: float = _WAIT_S) -> int:
        """Wait until the program has ended, and return its status."""
        deadline = time.monotonic() + wait_s
        while not (self._ended.is_file() and self._ended.read_text().endswith("\n")):
            assert time.monotonic() < deadline, f"it goes on; shown is\n{self.text()}"
            time.sleep(_LOOK_S)
        return int(self._ended.read_text())

    @property
    def pid(self) -> int:
        """The process of the program: the child of the terminal's shell."""
        shell = self._run("display-message", "-p", "-t", "test", "#{pane_pid}").strip()
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(children[0])

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the program."""
        os.kill(self.pid, number)

    def _run(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout


def ui_command(*arguments: str) -> list[str]:
    """Return the command line of the UI."""
    return [sys.executable, "-m", "mlbundle", "tui", *arguments]
