"""Workers that hang, crash, lie or fill the disk; interrupts; kills. Each ends typed, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import command_line, make_bundle

HERE = ("--runtime", "process", "--python", sys.executable, "--trust")
QUICK = ("--duration", "300ms", "--warmup", "10ms")


def scratch_folders(temporary: Path) -> set[Path]:
    return set(temporary.glob("mlbundle-scratch-*"))


def worker_processes(marker: str) -> list[int]:
    """Processes whose environment or command line holds `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in text and b"worker-" in text:
                found.append(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go, of this test alone: no scratch folder may be left there."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert scratch_folders(folder) == set()


CRASHES = {
    "exit": ("import os; os._exit(3)", "worker-failed"),
    "segfault": ("import ctypes; ctypes.string_at(0)", "worker-failed"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "worker-failed"),
    "kills its supervisor": ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", "worker-crashed"),
    "raises": ("raise RuntimeError('no')", "worker-failed"),
    "writes rubbish to stdout": (
        "import os; os.write(1, b'x' * 100000); raise RuntimeError('no')",
        "worker-failed",
    ),
}


@pytest.mark.parametrize("name", sorted(CRASHES))
def test_a_crash_is_typed_recorded_and_exits_4(cli, home, tmp_path, name) -> None:
    code, reference = CRASHES[name]
    bundle = make_bundle(tmp_path / "crash", preprocess=code)
    error = cli("run", bundle, *HERE, *QUICK, "--json").error(4, reference)
    assert error["hint"]
    (folder,) = (home / "data" / "runs").iterdir()
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "failed"
    assert record["error"]["reference"] == reference
    assert not list(folder.rglob("*.part"))


def test_the_parties_at_fault_are_told_apart(cli, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "raises", preprocess="raise RuntimeError('no')")
    error = cli("run", bundle, *HERE, *QUICK, "--json").error(4, "worker-failed")
    assert error["fault"] == "bundle"
    assert "line 2" in error["message"]


def test_a_worker_that_hangs_is_stopped(cli, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "hang", preprocess="import time\nwhile True: time.sleep(1)")
    error = cli("run", bundle, *HERE, *QUICK, "--timeout", "2s", "--json").error(4, "worker-hung")
    assert "--timeout" in error["hint"]
    silent_s = re.search(r"nothing heard for (\d+) s", error["message"])
    assert silent_s is not None, error
    assert 2 <= int(silent_s[1]) < 100, "the limit is not the one that was asked for"


def test_a_worker_that_fills_its_scratch_folder_is_stopped(cli, tmp_path) -> None:
    # Many small files: a limit on the size of one file would not stop it.
    code = "import os, time\nfor i in range(10**6):\n    open(f'{i}', 'wb').write(bytes(1 << 20)); time.sleep(0.01)"
    bundle = make_bundle(tmp_path / "fill", preprocess=code)
    limit = {"MLBUNDLE_SCRATCH_BYTES": str(20 << 20)}
    cli("run", bundle, *HERE, *QUICK, "--json", env=limit).error(4, "worker-exceeded-limit")


def test_a_worker_that_sends_too_much_is_stopped(cli, tmp_path) -> None:
    bundle = make_bundle(tmp_path / "mini")
    error = cli("run", bundle, *HERE, *QUICK, "--json", env={"MLBUNDLE_OUT_BYTES": "1000"})
    error.error(4, "worker-exceeded-limit")


def start(bundle: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_line("run", bundle, *HERE, "--duration", "10m", "--warmup", "10ms", *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until_measuring(home: Path) -> Path:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for events in (home / "data" / "runs").glob("*/events.jsonl"):
            if '"name":"measure","state":"begun"' in events.read_text():
                return events.parent
        time.sleep(0.05)
    raise AssertionError("the run did not begin to measure")


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_stops_the_worker_and_keeps_what_was_seen(cli, home, tmp_path, sent, status) -> None:
    process = start(make_bundle(tmp_path / "mini"))
    folder = wait_until_measuring(home)
    assert worker_processes(str(home))
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == status, stderr
    assert "Traceback" not in stderr
    assert f"what was seen of the run is kept in {folder}" in stderr
    assert worker_processes(str(home)) == []
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "cancelled"
    assert "ended in phase measure" in cli("runs", "show", "latest").stdout
    assert record["validity"]["valid"] is False


def test_a_killed_host_takes_its_worker_with_it_and_the_next_command_closes_the_run(
    cli, home, tmp_path, temporary
) -> None:
    process = start(make_bundle(tmp_path / "mini"))
    folder = wait_until_measuring(home)
    assert [left.name.endswith(folder.name) for left in scratch_folders(temporary)] == [True]
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while worker_processes(str(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert worker_processes(str(home)) == []
    (row,) = cli("runs", "list", "--json").document()["runs"]
    assert row["run_id"] == folder.name
    assert row["status"] == "partial"
    assert scratch_folders(temporary) == set()


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "link.bin"])
def test_a_graph_can_not_read_weights_from_outside_the_bundle(cli, tmp_path, location) -> None:
    import onnx
    from onnx.external_data_helper import set_external_data

    bundle = make_bundle(tmp_path / "mini")
    (tmp_path / "secret.bin").write_bytes(bytes(96))
    if location == "link.bin":
        (bundle / "link.bin").symlink_to(tmp_path / "secret.bin")
    model = onnx.load(str(bundle / "model.onnx"))
    set_external_data(model.graph.initializer[0], location, offset=0, length=96)
    model.graph.initializer[0].ClearField("raw_data")
    (bundle / "model.onnx").write_bytes(model.SerializeToString())
    error = cli(
        "run", bundle, "--runtime", "process", "--python", sys.executable, *QUICK, "--json"
    ).document()
    assert error["schema"] == "mlbundle/error/v1", "the graph was loaded"
    assert error["fault"] == "bundle"
    assert "can't load the graph" in error["message"]


def test_signals_that_come_in_a_row_still_leave_nothing_behind(home, tmp_path) -> None:
    process = start(make_bundle(tmp_path / "mini"))
    folder = wait_until_measuring(home)
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        process.send_signal(sent)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert worker_processes(str(home)) == []
    assert json.loads((folder / "record.json").read_text())["status"] == "cancelled"


def test_a_dataset_that_is_damaged_is_the_bundles_fault(cli, tmp_path) -> None:
    for name, content in {"empty": b"", "broken": b"PK\x03\x04" + b"x" * 100}.items():
        bundle = make_bundle(tmp_path / name)
        (bundle / "data.npz").write_bytes(content)
        error = cli("run", bundle, *HERE, *QUICK, "--json").error(4, "worker-failed")
        assert error["fault"] == "bundle", error


def test_a_python_of_a_relative_path_is_found(cli, tmp_path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    error = cli(
        "run", make_bundle(tmp_path / "mini"), "--runtime", "process", "--python", "python", *QUICK, "--json"
    )
    assert "can't start" not in error.stdout
