"""Questions about this machine whose answers cost memory: the container engine's client alone takes 10 MB.

`answer` answers in this process. An `Asker` has them answered by a process of its own, which may be let go when nobody
asks any more: `python -m mlbundle.runs.asking FOLDERS` reads a question a line and writes an answer a line, in JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from mlbundle.errors import (
    EngineUnavailable,
    Interrupted,
    MlbundleError,
    RunFailed,
    error_of_document,
    internal_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlbundle.config import Settings

_FOLDERS = ("data_dir", "cache_dir", "config_dir")
_KEPT_S = 5.0
_ENGINE_TIMEOUT_S = 10.0


class Ask(Protocol):
    """Answers a question: `question` is one of QUESTIONS, `about` and the answer are JSON-ready."""

    def __call__(self, question: str, settings: Settings, **about: Any) -> Any:
        """Return the answer; waits for it. Raises what answering it raises, as the same type."""


def answer(question: str, settings: Settings, **about: Any) -> Any:
    """Answer a question in this process. Raises KeyError for an unknown one, and what its function raises."""
    return QUESTIONS[question](settings, **about)


def _image(
    settings: Settings, *, framework: Mapping[str, Any], architecture: str, accelerator: str, pins: Any
) -> dict[str, Any]:
    """The image that a run would take. Raises EngineUnavailable, ImageMissing, ImageMismatch."""
    from mlbundle.bundle.document import ImagePin
    from mlbundle.runs.bundle_facts import framework_from_document
    from mlbundle.runtime.images import engine_client, resolve_image

    try:
        with closing(engine_client(_ENGINE_TIMEOUT_S)) as client:
            found = resolve_image(
                framework_from_document(framework),
                architecture,
                accelerator,
                settings,
                client,
                pins=[ImagePin(**pin) for pin in pins],
            )
    except MlbundleError:
        raise
    except Exception as error:
        # Whatever an engine does, the question has an answer.
        message = f"the container engine does not answer: {error}"
        raise EngineUnavailable(message, hint="restart it") from error
    return asdict(found)


def _images(settings: Settings) -> list[dict[str, Any]]:
    """All images that are known, and which are here."""
    from mlbundle.runtime.image_list import list_images

    return [asdict(image) for image in list_images(settings)]


def _machine(settings: Settings) -> dict[str, Any]:
    """What this machine is, and what works on it."""
    from mlbundle.runs.doctor import examine

    return examine(settings)


def _disk(settings: Settings) -> list[dict[str, Any]]:
    """What takes how much space."""
    from mlbundle.runs.disk import disk_rows
    from mlbundle.store.collect import du

    return [asdict(row) for row in disk_rows(du(settings.data_dir, settings.cache_dir))]


def _plan(settings: Settings, *, request: Mapping[str, Any]) -> dict[str, Any]:
    """What a run would do."""
    from mlbundle.runs.request import RunRequest, explain_request

    return explain_request(RunRequest(**request), settings)


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "image": _image,
    "images": _images,
    "machine": _machine,
    "disk": _disk,
    "plan": _plan,
}


class Asker:
    """Has questions answered by other processes, by one of which that is idle, else by a new one.

    One that nobody asked for some seconds is let go. Safe between threads. Close it: what is being asked then ends
    with Interrupted. Processes that nobody closed end with this one.
    """

    def __init__(self, kept_s: float = _KEPT_S) -> None:
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._all: set[_Helper] = set()
        self._idle: list[_Helper] = []
        self._closed = False

    def __call__(self, question: str, settings: Settings, **about: Any) -> Any:
        """Return the answer, as `answer` does. Raises RunFailed where the process that answers ends too early."""
        folders = {name: str(getattr(settings, name)) for name in _FOLDERS}
        helper = self._take()
        try:
            document = helper.ask({"question": question, "folders": folders, "about": about})
        except BaseException:
            self._drop(helper)
            if self._closed:
                raise Interrupted("stopped") from None
            raise
        self._put_back(helper)
        if "error" in document:
            raise error_of_document(document["error"])
        return document["answer"]

    def close(self) -> None:
        """End all processes; closing twice does no harm."""
        with self._lock:
            self._closed = True
            helpers, self._idle = list(self._all), []
        for helper in helpers:
            helper.kill()

    def _take(self) -> _Helper:
        with self._lock:
            if self._closed:
                raise Interrupted("stopped")
            if self._idle:
                helper = self._idle.pop()
                helper.keep()
                return helper
            helper = _Helper()
            self._all.add(helper)
            return helper

    def _put_back(self, helper: _Helper) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(helper)
                helper.let_go_after(self._kept_s, self._let_go)
                return
        self._drop(helper)

    def _let_go(self, helper: _Helper) -> None:
        with self._lock:
            if helper not in self._idle:  # asked again in the last moment
                return
            self._idle.remove(helper)
        self._drop(helper)

    def _drop(self, helper: _Helper) -> None:
        helper.end()
        with self._lock:
            self._all.discard(helper)


class _Helper:
    """One process that answers, for one thread at a time."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None
        self._process = subprocess.Popen(
            # -P: a folder `mlbundle` where the user stands is not ours.
            [sys.executable, "-P", "-m", "mlbundle.runs.asking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is for us
        )

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        try:
            document: dict[str, Any] = json.loads(line)
        except ValueError:
            status = self._process.wait()
            raise RunFailed(f"the process that looks at this machine ended with status {status}") from None
        return document

    def let_go_after(self, wait_s: float, call: Callable[[_Helper], None]) -> None:
        self._timer = threading.Timer(wait_s, call, [self])
        self._timer.daemon = True
        self._timer.start()

    def keep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def kill(self) -> None:
        self.keep()
        self._process.kill()

    def end(self) -> None:
        """Close the pipes, at which it ends; wait for that."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        self._process.wait()


def _answered(document: Mapping[str, Any]) -> dict[str, Any]:
    from mlbundle.config import load_settings

    try:
        folders = {name: Path(document["folders"][name]) for name in _FOLDERS}
        settings = replace(load_settings(), **folders)  # type: ignore[arg-type]
        return {"answer": answer(document["question"], settings, **document["about"])}
    except MlbundleError as error:
        return {"error": error.to_document()}
    except Exception as error:  # noqa: BLE001 - a defect of ours is shown as one, not as a traceback
        return {"error": internal_error(error).to_document()}


def main() -> NoReturn:
    """Answer what stdin asks until it ends, and then end at once, whatever is being answered."""
    import queue

    heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # What a library prints must not stand among the answers.
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)

    def hear() -> None:
        for line in sys.stdin.buffer:
            heard.put(line)
        os._exit(0)

    threading.Thread(target=hear, daemon=True).start()
    while True:
        out.write(json.dumps(_answered(json.loads(heard.get()))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
