"""Who drives a run is told to stop only when proven: a number that was given out again belongs to a stranger."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlbundle.errors import OwnerOutOfReach, StorageFailed, error_of_document
from mlbundle.runs import owner
from mlbundle.runs.folder import RunFolder, is_driven
from mlbundle.runs.owner import read_owner, signal_owner

RUN_ID = "20261121T120000Z-00000{}"
HOLDER = (
    "import sys, time; from pathlib import Path; from mlbundle.runs.folder import RunFolder\n"
    "with RunFolder(Path(sys.argv[1]), sys.argv[2]): print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The `owner.lock` of a run that this process drives."""
    with RunFolder(tmp_path, RUN_ID.format(1)) as folder:
        yield folder.path / "owner.lock"


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        assert process.poll() is None, "a stranger was killed"
        process.kill()


def name(lock: Path, pid: int, started: str) -> None:
    lock.write_text(json.dumps({"schema": owner.SCHEMA, "pid": pid, "started": started}))


def test_the_owner_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), RUN_ID.format(2)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        lock = tmp_path / RUN_ID.format(2) / "owner.lock"
        assert signal_owner(lock, signal.SIGTERM) == process.pid
        assert process.wait(30) == -signal.SIGTERM
    assert not is_driven(lock.parent)
    assert signal_owner(lock, signal.SIGTERM) is None, "nobody is there to be told"


def test_who_does_not_hold_the_lock_is_left_alone(run: Path, stranger: subprocess.Popen[bytes]) -> None:
    name(run, stranger.pid, owner._started(stranger.pid))
    with pytest.raises(OwnerOutOfReach, match=str(stranger.pid)):
        signal_owner(run, signal.SIGKILL)


def test_a_number_that_was_given_out_again_is_left_alone(
    run: Path, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_owner(run)
    assert before is not None
    assert before.pid == os.getpid()
    monkeypatch.setattr(owner, "_has_open", lambda _pid, _lock: True)  # as where the system does not tell
    name(run, stranger.pid, before.started)
    with pytest.raises(OwnerOutOfReach, match="left alone"):
        signal_owner(run, signal.SIGKILL)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"pid": 1}', '{"schema":"mlbundle/owner/v1","pid":-1,"started":"x"}', "\x00" * 5000],
)
def test_a_file_that_names_nobody(run: Path, text: str) -> None:
    run.write_text(text)
    assert read_owner(run) is None
    with pytest.raises(OwnerOutOfReach, match="does not say"):
        signal_owner(run, signal.SIGKILL)


def test_another_users_run() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user for a while")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    try:
        with RunFolder(folder, RUN_ID.format(3)) as made:
            os.seteuid(65534)
            try:
                assert is_driven(made.path)
                with pytest.raises(OwnerOutOfReach, match="another user's"):
                    signal_owner(made.path / "owner.lock", signal.SIGTERM)
            finally:
                os.seteuid(0)
    finally:
        shutil.rmtree(folder)


def test_an_error_of_another_process_keeps_its_type() -> None:
    said = StorageFailed("full", where="/data", context=["a", "b"], hint="free some")
    found = error_of_document(json.loads(json.dumps(said.to_document())))
    assert type(found) is StorageFailed
    assert found.to_document() == said.to_document()
