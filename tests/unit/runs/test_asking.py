"""Questions about this machine, answered by another process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mlbundle.config import Settings, load_settings
from mlbundle.errors import EngineUnavailable, Interrupted, ReferenceNotFound, RunFailed
from mlbundle.runs.asking import Asker, answer
from mlbundle.runs.readiness import Here
from mlbundle.runtime.images import built_in_framework

_WAIT_S = 60.0


@pytest.fixture
def settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home beside an engine that is not there."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/engine.sock")
    return load_settings()


@pytest.fixture
def asker() -> Iterator[Asker]:
    with closing(Asker()) as asker:
        yield asker


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def test_one_process_answers_many_questions_as_this_one_would(settings: Settings, asker: Asker) -> None:
    before = set(children())
    assert asker("disk", settings) == answer("disk", settings)
    (helper,) = set(children()) - before
    framework = built_in_framework("onnxruntime")
    about: dict[str, Any] = {"framework": asdict(framework), "architecture": "amd64", "accelerator": "cpu"}
    with pytest.raises(EngineUnavailable, match="DOCKER_HOST") as caught:
        asker("image", settings, **about, pins=[])
    assert caught.value.hint
    with pytest.raises(ReferenceNotFound, match="nowhere"):
        asker("plan", settings, request={"reference": "nowhere"})
    here = Here(settings, asker)
    assert isinstance(here.image(framework, "cpu", ()), EngineUnavailable)
    assert set(children()) - before == {helper}

    os.kill(helper, signal.SIGKILL)
    with pytest.raises(RunFailed, match="ended with status"):
        asker("disk", settings)
    assert asker("disk", settings) == answer("disk", settings)


def test_a_process_that_nobody_asks_is_let_go_and_one_that_is_asked_is_stopped(settings: Settings) -> None:
    before = set(children())
    with closing(Asker(kept_s=0.0)) as asker:
        assert asker("images", settings)
        until(lambda: not set(children()) - before)

        caught: list[Exception] = []

        def ask() -> None:
            try:
                asker("machine", settings)
            except Exception as error:
                caught.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: bool(set(children()) - before))
        asker.close()
        thread.join(_WAIT_S)
        assert [type(error) for error in caught] == [Interrupted]
        assert not set(children()) - before
        with pytest.raises(Interrupted):
            asker("disk", settings)
