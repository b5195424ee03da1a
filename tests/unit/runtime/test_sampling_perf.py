"""Counters of the kernel for a process and its children; what can't be had is left out."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from mlbundle.runtime import sampling_perf
from mlbundle.runtime.sampling_perf import EVENTS, PerfCounters

# Waits for a line, then starts a child that touches 2,000 pages that it did not have.
CHILD = (
    "import mmap; m = mmap.mmap(-1, 2000 * 4096); [m.__setitem__(i * 4096, 1) for i in range(2000)]; print(1)"
)
PARENT = f"import subprocess, sys; input(); subprocess.run([sys.executable, '-c', {CHILD!r}]); input()"


def test_what_children_do_is_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        counters = PerfCounters(parent.pid)
        try:
            before = counters.read()
            if "perf_page_faults_count" not in before:
                pytest.skip("the kernel gives no counters (perf_event_paranoid, or a sandbox)")
            assert parent.stdin is not None
            assert parent.stdout is not None
            parent.stdin.write(b"\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == b"1\n"
            deadline = time.monotonic() + 60
            while (after := counters.read())["perf_page_faults_count"] < before[
                "perf_page_faults_count"
            ] + 2000:
                assert time.monotonic() < deadline, after
                time.sleep(0.01)
            assert set(after) <= set(EVENTS)
        finally:
            counters.close()
            parent.kill()
    assert counters.read() == {}


def test_a_process_that_is_gone_has_none() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert PerfCounters(done.pid).read() == {}


def test_a_machine_of_another_kind_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_perf.platform, "machine", lambda: "z80")
    assert PerfCounters(1).read() == {}
