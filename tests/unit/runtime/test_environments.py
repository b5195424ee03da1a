"""Environments of hash-locked requirements: made once, whole or not at all, shared, said when it goes wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support import Cli, small_file_system

from mlbundle.errors import DigestMismatch, PythonEnvironmentFailed, StorageFailed, UsageError
from mlbundle.resources import resource_folder
from mlbundle.runtime import environments
from mlbundle.runtime.environments import drop_unused, ensure_environment, environment_folder

OLD_S = 40 * 24 * 3600


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two small wheels; pip knows no other place."""
    folder = tmp_path / "wheel-folder"
    folder.mkdir()
    for name in ("first", "second"):
        write_wheel(folder, name)
    for variable in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, name: str, *, size_bytes: int = 10) -> Path:
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": b"x = 1\n" + b"#" * size_bytes,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return wheel


def write_lock(path: Path, *wheels: Path, digest: str | None = None) -> Path:
    lines = [
        f"{w.name.split('-')[0]}==1.0 \\\n    --hash=sha256:{digest or hashlib.sha256(w.read_bytes()).hexdigest()}\n"
        for w in wheels
    ]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def lock(tmp_path: Path, wheels: Path) -> Path:
    return write_lock(tmp_path / "requirements.lock", *sorted(wheels.iterdir()))


def test_an_environment_is_made_once_with_a_line_for_each_package(tmp_path, lock) -> None:
    heard: list[str] = []
    made = ensure_environment(tmp_path / "cache", "mini", lock, report=heard.append)
    code = "import sys, first, second; print(sys.prefix)"
    prefix = subprocess.check_output([made.python, "-c", code], text=True).strip()
    assert Path(prefix) == environment_folder(tmp_path / "cache", "mini", lock)
    assert [line for line in heard if "first 1.0" in line and "/2)" in line], heard
    assert [line for line in heard if "second 1.0" in line and "/2)" in line], heard
    heard.clear()
    again = ensure_environment(tmp_path / "cache", "other", lock, make=False, report=heard.append)
    assert again.python != made.python
    assert "a run would make it" in heard[0]
    heard.clear()
    assert ensure_environment(tmp_path / "cache", "mini", lock, report=heard.append) == made
    assert heard == []


def test_other_bytes_than_the_locks_name_the_package(tmp_path, lock, wheels) -> None:
    wrong = write_lock(tmp_path / "wrong.lock", *sorted(wheels.iterdir()), digest="0" * 64)
    with pytest.raises(DigestMismatch) as caught:
        ensure_environment(tmp_path / "cache", "mini", wrong)
    assert caught.value.exit_code == 5
    assert "first==1.0" in caught.value.message
    assert "first-1.0-py3-none-any.whl" in str(caught.value.context)
    assert any("0" * 64 in line for line in caught.value.context)
    assert whole(tmp_path / "cache") == []


def test_a_package_that_nobody_has_is_named(tmp_path, wheels) -> None:
    missing = tmp_path / "missing.lock"
    missing.write_text(f"mini==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(PythonEnvironmentFailed, match=r"mini==1\.0") as caught:
        ensure_environment(tmp_path / "cache", "mini", missing)
    assert "index" in str(caught.value.hint)
    assert whole(tmp_path / "cache") == []


def test_the_lock_of_torch_says_where_its_wheels_lie(tmp_path, wheels) -> None:
    (lock,) = (resource_folder("containers") / "torch" / "cpu").glob("*-amd64.lock")
    with pytest.raises(PythonEnvironmentFailed) as caught:
        ensure_environment(tmp_path / "cache", "torch", lock)
    assert "PIP_EXTRA_INDEX_URL" in str(caught.value.hint)


def test_a_full_disk_is_said_and_nothing_half_made_is_used(tmp_path, wheels) -> None:
    big = write_lock(tmp_path / "big.lock", write_wheel(wheels, "big", size_bytes=8 << 20))
    with small_file_system(tmp_path / "disk", "3m") as disk:
        with pytest.raises(StorageFailed, match="No space left") as caught:
            ensure_environment(disk, "mini", big)
        assert caught.value.hint
        assert whole(disk) == []
        assert [p for p in (disk / "envs").iterdir() if p.is_dir()] == []


def test_a_python_that_can_install_nothing_says_what_to_install(tmp_path, lock, monkeypatch) -> None:
    # What Debian's Python says where python3-venv is not installed; ours has it.
    bare = tmp_path / "python3"
    bare.write_text(
        "#!/bin/sh\necho 'The virtual environment was not created successfully because ensurepip is not'\n"
        "echo 'available.'\nexit 1\n"
    )
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(PythonEnvironmentFailed, match="neither pip nor ensurepip") as caught:
        ensure_environment(tmp_path / "cache", "mini", lock)
    assert "python3-venv" in str(caught.value.hint)


MAKER = """
import sys
from pathlib import Path
from mlbundle.runtime.environments import ensure_environment
print(ensure_environment(Path(sys.argv[1]), "mini", Path(sys.argv[2]), report=lambda l: print(l, flush=True)).python)
"""


def maker(cache: Path, lock: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, cache, lock],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_two_at_once_make_one(tmp_path, lock) -> None:
    outputs = [p.communicate(timeout=300)[0] for p in [maker(tmp_path / "cache", lock) for _ in range(2)]]
    assert sorted("making" in text for text in outputs) == [False, True]
    assert len({text.splitlines()[-1] for text in outputs}) == 1


def commands_in(folder: Path) -> list[str]:
    """The command lines of processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            found += [line] if str(folder) in line and int(path.parent.name) != os.getpid() else []
    return found


def test_a_kill_leaves_nothing_half_used_and_no_pip_behind(tmp_path, lock) -> None:
    cache = tmp_path / "cache"
    process = maker(cache, lock)
    deadline = time.monotonic() + 120
    while not any(" install " in command for command in commands_in(cache / "envs")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while commands_in(cache / "envs"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert whole(cache) == []
    assert drop_unused(cache, dry_run=True).leftovers == 1
    made = ensure_environment(cache, "mini", lock)
    assert subprocess.run([made.python, "-c", "import first, second"]).returncode == 0
    assert drop_unused(cache, dry_run=True).leftovers == 0


def test_only_leftovers_of_the_same_environment_go(tmp_path, lock) -> None:
    folder = environment_folder(tmp_path / "cache", "mini", lock)
    others = [folder.with_name(f".other-{'a' * 24}.0badcafe.tmp"), folder.with_name(f".x{folder.name}.tmp")]
    own = [folder.with_name(f".{folder.name}.{middle}tmp") for middle in ("", "0badcafe.")]
    for left_behind in (*others, *own):
        left_behind.mkdir(parents=True)
    ensure_environment(tmp_path / "cache", "mini", lock)
    assert [path.exists() for path in (*others, *own)] == [True, True, False, False]


@pytest.mark.parametrize(
    "name", ["../../planted/x", "/planted", "a/b", "..", ".", "", "a b", "a\nb", "a" * 65, "é"]
)
def test_a_framework_that_is_no_name_of_a_folder_gets_none(tmp_path, lock, name) -> None:
    with pytest.raises(UsageError) as caught:
        ensure_environment(tmp_path / "a" / "cache", name, lock)
    assert "--python" in str(caught.value.hint)
    assert not (tmp_path / "a").exists()
    assert not list(tmp_path.glob("planted*"))


@pytest.mark.parametrize("name", ["TensorFlow", "my_Net.2-x"])
def test_whatever_the_name_gc_finds_the_environment(tmp_path, lock, name) -> None:
    folder = environment_folder(tmp_path, name, lock)
    folder.mkdir(parents=True)
    assert folder == environment_folder(tmp_path, name.lower(), lock)
    assert drop_unused(tmp_path, dry_run=True).environments == 1


def test_an_environment_whose_python_is_gone_is_made_anew(tmp_path, lock) -> None:
    made = ensure_environment(tmp_path / "cache", "mini", lock)
    made.python.unlink()
    made.python.symlink_to(tmp_path / "gone")
    again = ensure_environment(tmp_path / "cache", "mini", lock)
    assert subprocess.run([again.python, "-c", "import first"]).returncode == 0


def whole(cache: Path) -> list[Path]:
    return [p for p in (cache / "envs").glob("*") if not p.name.startswith(".")]


@pytest.fixture
def cache(home: Path) -> Iterator[Path]:
    """A cache with environments and wheels as runs and builds leave them: of each kind an old and a young one."""
    folder = home / "cache"
    shipped = sorted(resource_folder("containers").rglob("*.lock"))[0]
    digest = hashlib.sha256(shipped.read_bytes()).hexdigest()
    for name, lock_sha256 in {"old-": digest, "young-": digest, "unshipped-": "0" * 64}.items():
        environment = folder / "envs" / (name + "a" * 24)
        environment.mkdir(parents=True)
        (environment / "mlbundle-environment.json").write_text(json.dumps({"lock_sha256": lock_sha256}))
    for name in ("b" * 24, "c" * 24):
        (folder / "wheels" / name).mkdir(parents=True)
        (folder / "wheels" / name / "a.whl").write_bytes(b"x" * 1000)
    (folder / "envs" / f".young-{'a' * 24}.tmp").mkdir()
    (folder / "envs" / "of-somebody-else").mkdir()
    before = time.time() - OLD_S
    for path in (folder / "envs" / ("old-" + "a" * 24), folder / "wheels" / ("b" * 24)):
        os.utime(path, (before, before))
    yield folder
    shutil.rmtree(folder)


def left(cache: Path) -> set[str]:
    return {p.name[:6] for kind in ("envs", "wheels") for p in (cache / kind).iterdir() if p.is_dir()}


def test_gc_removes_what_is_old_or_not_shipped_and_du_shows_the_rest(cli: Cli, cache) -> None:
    before = cli("du", "--json").document()["kinds"]
    assert before["wheels"] == {"files": 2, "size_bytes": 2000}
    assert before["python_environments"]["files"] == 3
    would = cli("gc", "--dry-run", "--json").document()
    assert left(cache) >= {"old-aa", "young-", "unship", "bbbbbb", "cccccc"}
    did = cli("gc", "--json").document()
    assert (did["environments"], did["wheels"], did["partials"]) == (2, 1, 1)
    assert {**would, "removed": True} == did
    assert did["size_bytes"] > 1000
    assert left(cache) == {"young-", "cccccc", "of-som"}
    assert cli("du", "--json").document()["kinds"]["wheels"]["size_bytes"] == 1000


def test_gc_of_all_environments_leaves_those_in_use(cli: Cli, cache) -> None:
    from mlbundle.store.bundles import Hold

    used = Hold(cache / "envs" / ("young-" + "a" * 24))
    assert cli("gc", "--environments", "--json").document()["environments"] == 2
    assert left(cache) == {"young-", "of-som"}
    del used
    assert cli("gc", "--environments", "--json").document()["environments"] == 1
    assert left(cache) == {"of-som"}


def test_an_environment_is_held_and_its_use_remembered(tmp_path, lock, monkeypatch) -> None:
    monkeypatch.setattr(environments, "_shipped_locks", frozenset)
    made = ensure_environment(tmp_path / "cache", "mini", lock)
    folder = environment_folder(tmp_path / "cache", "mini", lock)
    os.utime(folder, (0, 0))
    assert drop_unused(tmp_path / "cache", everything=True).environments == 0
    made = ensure_environment(tmp_path / "cache", "mini", lock)
    assert time.time() - folder.stat().st_mtime < 60
    del made
    assert drop_unused(tmp_path / "cache", dry_run=True).environments == 1
    assert drop_unused(tmp_path / "cache").environments == 1
    assert not folder.exists()
