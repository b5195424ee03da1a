"""Writing: the old file or the new one, never half of one; unpacked bundles notice what was changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlbundle.errors import StorageFailed
from mlbundle.files import locked, write_atomically


def test_a_write_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["file"]


def test_a_folder_that_is_a_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed):
        write_atomically(tmp_path / "file" / "below", b"")


def test_killed_writers_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"0" * 100_000)
    script = "import sys, itertools\nfrom pathlib import Path\nfrom mlbundle.files import write_atomically\n"
    script += "for i in itertools.count():\n    write_atomically(Path(sys.argv[1]), str(i % 10).encode() * 100_000)\n"
    for delay_s in (0.2, 0.25, 0.31):
        process = subprocess.Popen([sys.executable, "-c", script, str(path)])
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        content = path.read_bytes()
        assert len(content) == 100_000
        assert len(set(content)) == 1


def test_a_lock_keeps_others_out_until_it_is_let_go(tmp_path: Path) -> None:
    script = "import sys\nfrom pathlib import Path\nfrom mlbundle.files import locked\n"
    script += "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n"
    with locked(tmp_path / "lock"):
        other = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "lock")], stdout=subprocess.PIPE
        )
        with pytest.raises(subprocess.TimeoutExpired):
            other.communicate(timeout=0.7)
    assert other.communicate(timeout=60)[0] == b"held\n"
