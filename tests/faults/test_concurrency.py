"""Several commands on one data folder, one file, one repository at the same moment: all succeed, each blob comes once."""

from __future__ import annotations

import fcntl
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from registry_fixture import RealRegistry
from store_checks import check_store, hidden, write_model
from support import Cli, Outcome, command_line, make_bundle

from mlbundle.bundle.reader import open_bundle
from mlbundle.bundle.verify import verify

HERE = ("--runtime", "process", "--python", sys.executable, "--duration", "50ms", "--warmup", "1ms")


def at_once(*commands: list[str | Path]) -> list[Outcome]:
    """Run commands in processes that have imported everything and begin at the same moment."""
    orders = [{"arguments": [*map(str, command), "--json"]} for command in commands]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("forked.py")],
        input=json.dumps(orders),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [Outcome(**answer) for answer in json.loads(done.stdout)]


def all_succeed(*commands: list[str | Path]) -> list[dict[str, object]]:
    outcomes = at_once(*commands)
    for command, outcome in zip(commands, outcomes, strict=True):
        assert outcome.status == 0, f"{command}\n{outcome.stdout}{outcome.stderr}"
    return [outcome.document() for outcome in outcomes]


def packed(cli: Cli, folder: Path, version: str = "1.0.0", size_bytes: int = 6_000_000) -> Path:
    weights = random.Random(version).randbytes(size_bytes)
    path = folder / f"net-{version}.mlb"
    assert cli("pack", write_model(folder / version, "net", version, weights), "-o", path).status == 0
    return path


def requests(registry: RealRegistry, method: str, path: str) -> list[tuple[str, int, int]]:
    """What was asked below a path, from the access log: (rest of the path, status, bytes sent)."""
    pattern = re.compile(rf'"{method} {re.escape(path)}(\S*) HTTP/1\.1" (\d+) (\d+)')
    log = (registry.folder.parent / "log").read_text()
    return [(match[1], int(match[2]), int(match[3])) for match in pattern.finditer(log)]


def test_four_processes_add_the_same_bundle(cli: Cli, home: Path, tmp_path: Path) -> None:
    path = packed(cli, tmp_path)
    answers = all_succeed(*[["add", path]] * 4)
    assert len({answer["manifest_digest"] for answer in answers}) == 1
    assert [entry.version for entry in check_store(home / "data")] == ["1.0.0"]
    assert list((home / "data" / "blobs" / "partial").iterdir()) == []
    assert hidden(home / "data") == set()


def test_three_processes_pull_the_same_bundle_and_each_blob_is_fetched_once(
    cli: Cli, home: Path, tmp_path: Path, registry: RealRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    path = packed(cli, tmp_path)
    target = f"{registry.host}/thrice/net:1.0.0"
    assert cli("push", path, target, "--plain-http").status == 0
    all_succeed(*[["pull", target, "--plain-http"]] * 3)
    assert [entry.version for entry in check_store(home / "data")] == ["1.0.0"]
    assert list((home / "data" / "blobs" / "partial").iterdir()) == []

    with open_bundle(path) as reader:
        large = {layer.hex: layer.size_bytes for layer in reader.layers if layer.size_bytes >= 1 << 20}
    times, sent_bytes = Counter[str](), Counter[str]()
    for rest, status, size_bytes in requests(registry, "GET", "/v2/thrice/net/blobs/sha256:"):
        assert status in {200, 206}
        times[rest] += 1
        sent_bytes[rest] += size_bytes
    with capsys.disabled():
        told = {key[:12]: f"{times[key]} of {size}" for key, size in large.items()}
        print(f"\n3 pulls at once, requests of large blobs: {told}; of all blobs: {sum(times.values())}")
    assert len(large) == 2
    for key, size_bytes in large.items():
        assert (times[key], sent_bytes[key]) == (1, size_bytes)


def test_collecting_beside_adding(cli: Cli, home: Path, tmp_path: Path) -> None:
    paths = [packed(cli, tmp_path, f"1.0.{number}", 2_000_000) for number in range(4)]
    for _ in range(3):
        all_succeed(
            *[["add", path] for path in paths], ["gc"], ["gc", "--partials"], ["gc"], ["gc", "--partials"]
        )
        assert sorted(entry.version for entry in check_store(home / "data")) == [
            f"1.0.{number}" for number in range(4)
        ]
        # All go at once, beside each other and the collectors; the next round brings them again.
        all_succeed(*[["rm", f"net:1.0.{number}"] for number in range(4)], ["gc"])
        assert check_store(home / "data") == []
    assert cli("gc", "--partials").status == 0
    assert list((home / "data" / "blobs" / "sha256").iterdir()) == []


def test_packing_to_the_same_file_at_once(cli: Cli, tmp_path: Path) -> None:
    sources = [tmp_path / f"1.0.{number}" for number in range(3)]
    digests = set()
    for source in sources:
        digests.add(verify(packed(cli, tmp_path, source.name, 2_000_000)).manifest_digest)
    out = tmp_path / "out"
    out.mkdir()
    for _ in range(3):
        all_succeed(*[["pack", source, "-o", out / "net.mlb", "--force"] for source in sources * 2])
        assert verify(out / "net.mlb").manifest_digest in digests
        assert {path.name for path in out.iterdir()} == {"net.mlb"}


def test_what_a_killed_pack_left_goes_but_not_what_is_being_written(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "net.mlb"
    left = tmp_path / ".net.mlb.0a1b2c3d.partial"
    held = tmp_path / ".net.mlb.ffffffff.partial"
    others = [
        tmp_path / ".other.mlb.0a1b2c3d.partial",
        tmp_path / ".net.mlb.txt",
        tmp_path / ".net.mlb.0a1b.partial",
    ]
    for path in (left, held, *others):
        path.write_bytes(b"half")
    (tmp_path / ".net.mlb.aaaaaaaa.partial").mkdir()
    (tmp_path / ".net.mlb.bbbbbbbb.partial").symlink_to(others[0])
    source = write_model(tmp_path / "source", "net", "1.0.0", b"weights")
    with held.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert cli("pack", source, "-o", target).status == 0
    assert not left.exists()
    assert held.exists()
    assert all(path.read_bytes() == b"half" for path in others)
    assert (tmp_path / ".net.mlb.aaaaaaaa.partial").is_dir()
    assert cli("pack", source, "-o", target, "--force").status == 0
    assert not held.exists()


def test_collecting_removes_the_half_entries_of_killed_processes(
    cli: Cli, home: Path, tmp_path: Path
) -> None:
    assert cli("add", packed(cli, tmp_path)).status == 0
    data = home / "data"
    left = [data / "library" / f".{'a' * 64}.json.x1y2z3", data / "blobs" / ".stamps.txt.x1y2z3"]
    foreign = data / "library" / ".notes"
    for path in (*left, foreign):
        path.write_bytes(b"half")
    assert cli("gc", "--dry-run", "--json").document()["partials"] == 2
    assert all(path.exists() for path in left)
    assert cli("gc", "--json").document()["partials"] == 2
    assert not any(path.exists() for path in left)
    assert foreign.exists()
    assert len(check_store(data)) == 1


def test_the_tag_comes_after_the_signature(cli: Cli, tmp_path: Path, registry: RealRegistry) -> None:
    path, key = packed(cli, tmp_path), tmp_path / "key"
    assert cli("keygen", key, "--no-passphrase").status == 0
    assert cli("sign", path, "--key", key).status == 0
    assert cli("push", path, f"{registry.host}/signed/net:1.0.0", "--plain-http").status == 0
    names = [rest for rest, *_ in requests(registry, "PUT", "/v2/signed/net/manifests/")]
    assert names[-1] == "1.0.0", "who finds the tag before the signature takes the bundle for unsigned"
    assert names.count("1.0.0") == 1
    assert any(name.startswith("sha256-") for name in names)


def test_a_bundle_is_removed_while_it_is_unpacked_for_a_run(cli: Cli, home: Path, tmp_path: Path) -> None:
    folder = big_mini(tmp_path)
    assert cli("add", folder).status == 0
    with run_that_unpacks(home, "mini") as run:
        assert cli("rm", "mini").status == 0
        stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == 0, stdout + stderr
    assert check_store(home / "data") == []
    assert cli("gc").status == 0
    assert cli("add", folder).status == 0
    assert cli("run", "mini", *HERE, "--json").document()["accuracy"]["value"] == 1.0


def test_what_a_run_uses_is_not_collected(cli: Cli, home: Path, tmp_path: Path) -> None:
    """The bundle is a file: neither the library nor a record names it while it runs."""
    path, trees = tmp_path / "mini.mlb", home / "data" / "bundles"
    assert cli("pack", big_mini(tmp_path), "-o", path).status == 0
    with run_that_unpacks(home, path) as run:
        # The collector waits until it is unpacked, and then the run needs it.
        assert cli("gc", "--json").document()["trees"] == 0
        stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == 0, stdout + stderr
    (record,) = (home / "data" / "runs").glob("*/record.json")
    assert cli("gc", "--json").document()["trees"] == 0, "a run names it"
    record.unlink()
    assert cli("gc", "--json").document()["trees"] == 1
    assert list(trees.iterdir()) == [trees / ".lock"]


def big_mini(tmp_path: Path) -> Path:
    folder = make_bundle(tmp_path / "mini")
    (folder / "README.md").write_bytes(random.Random(0).randbytes(20_000_000))
    return folder


@contextmanager
def run_that_unpacks(home: Path, reference: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A run that is just writing the files of its bundle."""
    for _ in range(5):
        run = subprocess.Popen(
            command_line("run", reference, *HERE, "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with run:
            while run.poll() is None:
                if hidden(home / "data" / "bundles"):
                    yield run
                    return
                time.sleep(0.001)
            stdout, stderr = run.communicate()
            assert run.returncode == 0, stdout + stderr
        # We stood still while it unpacked: as if it had not been.
        shutil.rmtree(home / "data" / "bundles")
        shutil.rmtree(home / "data" / "runs")
    raise AssertionError("it was always over before anything was seen of it")
