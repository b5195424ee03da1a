"""Whether a browser can be opened here, and opening it."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import threading

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_SSH = "SSH_CONNECTION"
_PATIENCE_S = 3.0


def has_browser() -> bool:
    """Return whether a browser that shows windows can be opened by this process.

    Not over ssh, where it would open on the other side, unless BROWSER names one: it is set where something hands
    links to the user's own machine.
    """
    import webbrowser

    if not os.environ.get("BROWSER"):
        if over_ssh():
            return False
        if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in _DISPLAYS):
            return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def open_browser(link: str) -> bool:
    """Open a link; returns whether a browser took it.

    One that goes on in the foreground, as a program named by BROWSER may, is not waited for.
    """
    import webbrowser

    failed = threading.Event()

    def hand_over() -> None:
        try:
            taken = webbrowser.open(link)
        except (webbrowser.Error, OSError):
            taken = False
        if not taken:
            failed.set()

    opener = threading.Thread(target=hand_over, daemon=True)
    opener.start()
    opener.join(_PATIENCE_S)
    return not failed.is_set()


def over_ssh() -> bool:
    """Return whether this terminal is that of another machine."""
    return bool(os.environ.get(_SSH))


def tunnel_command(port: int) -> str:
    """Return what to type on the machine with the browser, so that the link works there."""
    words = os.environ.get(_SSH, "").split()
    # SSH_CONNECTION: the client's address and port, then those of this machine as the client knows it.
    host = words[2] if len(words) == 4 else socket.gethostname()
    try:
        user = f"{getpass.getuser()}@"
    except (KeyError, OSError):  # a user without a name
        user = ""
    return f"ssh -N -L {port}:127.0.0.1:{port} {user}{host}"
