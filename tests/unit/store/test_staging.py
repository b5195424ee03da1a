"""Staging folders: gone at the end, and those of killed processes with the next one or with gc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from mlbundle.store.collect import gc
from mlbundle.store.staging import leftovers, staging

KILLED = """
import os, signal, sys
from pathlib import Path
from mlbundle.store.staging import staging
with staging(Path(sys.argv[1])) as folder:
    (folder / "bundle.mlb").write_bytes(bytes(1000))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(cache: Path) -> Path:
    """What a packer that was killed leaves."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(cache)], timeout=60, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    (folder,) = leftovers(cache)
    return folder


def test_a_staging_folder_is_gone_at_the_end(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with staging(cache) as folder:
        (folder / "bundle.mlb").write_bytes(b"1")
        assert folder.parent == cache
        assert leftovers(cache) == []
    assert list(cache.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next(tmp_path: Path) -> None:
    left = killed(tmp_path)
    (tmp_path / "staging-notes").write_text("mine")
    with staging(tmp_path) as mine:
        assert not left.exists()
        with staging(tmp_path) as other:
            assert mine.is_dir()
            assert other.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["staging-notes"]


def test_what_a_killed_process_left_goes_with_the_garbage(tmp_path: Path) -> None:
    cache, data = tmp_path / "cache", tmp_path / "data"
    left = killed(cache)
    with staging(tmp_path / "cache") as mine:
        assert not left.exists()
        left = mine
        assert gc(data, cache_dir=cache).partials == 0
        assert mine.is_dir()
    left = killed(cache)
    would = gc(data, cache_dir=cache, dry_run=True)
    assert (would.files, would.size_bytes, would.partials) == (1, 1000, 1)
    assert left.is_dir()
    assert gc(data, cache_dir=cache) == would
    assert not left.exists()
