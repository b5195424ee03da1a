"""Runs that go on in a process of their own, whatever becomes of the process and the terminal that started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mlbundle.errors import Interrupted, MlbundleError, RunFailed, error_of_document, internal_error
from mlbundle.runs.execute import Execution

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlbundle.config import Settings
    from mlbundle.runs.plan import RunPlan

_TAIL_LINES = 12
_LOOK_S = 0.5
_DESCRIPTORS = Path("/dev/fd")


def start_detached(plan: RunPlan, settings: Settings) -> str:
    """Start a planned run in a process of its own; returns its id as soon as its folder is there.

    The process is forked, so that what the plan holds (an environment, an image) is held until the run ends: call this
    from a process without other threads, whose SIGTERM raises an exception, as the command line's does. If the caller
    is gone before it could be told, the run ends: nobody knows of it. Raises what kept the run from beginning.
    """
    heard, teller = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    with os.fdopen(heard, "rb") as answer:
        try:
            between = os.fork()
            if between == 0:
                os.close(heard)  # or a caller that is gone would not be noticed
                _detach(plan, settings, teller)
        finally:
            os.close(teller)
        os.waitpid(between, 0)
        text = answer.read()
    if not text:
        raise RunFailed(
            "the process of the run ended before it could begin", hint="run without --detach to see why"
        )
    document: dict[str, Any] = json.loads(text)
    if "run_id" not in document:
        raise error_of_document(document)
    return str(document["run_id"])


def start_by_command(
    arguments: Sequence[str],
    report: Callable[[str], None] = lambda _line: None,
    stop: threading.Event | None = None,
) -> str:
    """Start what `mlbundle run ARGUMENTS` says, detached; returns the run's id. For a process that has threads.

    Waits while the run is planned; `report` hears what the command says of it, `stop` ends that. Raises the command's
    own error, Interrupted when it was stopped.
    """
    with tempfile.TemporaryFile() as out:
        with subprocess.Popen(
            # -P: a folder `mlbundle` where the user stands is not ours.
            [sys.executable, "-P", "-m", "mlbundle", "run", *arguments, "--detach", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # a terminal's Ctrl-C is for us
        ) as process:
            assert process.stderr is not None
            if stop is not None:
                threading.Thread(target=_stop, args=(process, stop), name="stop", daemon=True).start()
            said = deque((_say(line.rstrip("\n"), report) for line in process.stderr), maxlen=_TAIL_LINES)
        out.seek(0)
        text = out.read()
    if process.returncode and stop is not None and stop.is_set():
        raise Interrupted("stopped before the run had begun")
    try:
        document: dict[str, Any] = json.loads(text)
        return str(document["run_id"]) if process.returncode == 0 else _raise(document)
    except (ValueError, KeyError, TypeError):
        raise RunFailed(
            f"`mlbundle run` ended with status {process.returncode} and told nothing", context=list(said)
        ) from None


def _stop(process: subprocess.Popen[str], stop: threading.Event) -> None:
    """Tell a command to end when it is to stop; wait for either."""
    while process.poll() is None:
        if stop.wait(_LOOK_S):
            process.terminate()
            return


def _say(line: str, report: Callable[[str], None]) -> str:
    report(line)
    return line


def _raise(document: dict[str, Any]) -> NoReturn:
    raise error_of_document(document)


def _detach(plan: RunPlan, settings: Settings, teller: int) -> NoReturn:
    """In the child: leave the session, end so that nobody has to wait for the grandchild, and there run."""
    try:
        os.setsid()
        if os.fork() == 0:
            _leave_terminal(teller)
            _run(plan, settings, teller)
    finally:
        # What is buffered or registered to be done at the end is the parent's.
        os._exit(0)


def _leave_terminal(teller: int) -> None:
    # A handler, unlike SIG_IGN, is not handed on to the programs that we start.
    signal.signal(signal.SIGHUP, lambda *_: None)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    # What the shell left open for us is the shell's; what we opened ourselves is not inheritable.
    for name in list(_DESCRIPTORS.iterdir()) if _DESCRIPTORS.is_dir() else ():
        number = int(name.name)
        with suppress(OSError):
            if number > 2 and number != teller and os.get_inheritable(number):
                os.close(number)


def _run(plan: RunPlan, settings: Settings, teller: int) -> None:
    begun = False
    try:
        with closing(Execution(plan, settings).events()) as events:
            for _event in events:
                if not begun:
                    # The folder is there, with its lock. A broken pipe ends the run: it was never heard of.
                    _tell(teller, {"run_id": plan.run_id})
                    begun = True
    except Exception as error:  # noqa: BLE001 - once the folder is there, its record says it
        if not begun:
            failure = error if isinstance(error, MlbundleError) else internal_error(error)
            with suppress(OSError):
                _tell(teller, failure.to_document())


def _tell(teller: int, document: dict[str, Any]) -> None:
    text = json.dumps(document).encode("ascii")
    while text:
        text = text[os.write(teller, text) :]
    os.close(teller)
