"""Logs read in pieces: every way through a file shows the same lines, whatever its bytes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlbundle.errors import StorageFailed
from mlbundle.runs import log_file
from mlbundle.runs.log_file import LONGEST_LINE, LogFile


@pytest.fixture
def log(tmp_path: Path) -> LogFile:
    path = tmp_path / "worker.log"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    return LogFile(path)


def test_both_ways_show_the_same_lines(log: LogFile) -> None:
    first = log.after(0, 3)
    assert [line.text for line in first] == ["line 0", "line 1", "line 2"]
    assert log.before(first[-1].end, 3) == first
    assert log.before(first[0].begin, 3) == []
    assert [line.text for line in log.last(2)] == ["line 998", "line 999"]
    assert log.after(log.size_bytes(), 5) == []


def test_a_text_is_found_both_ways_whatever_its_capitals(log: LogFile) -> None:
    place = log.find("LINE 55", 0)
    assert place is not None
    (line,) = log.after(place, 1)
    assert line.text == "line 55"
    following = log.find("line 55", line.end)
    assert following is not None
    assert log.after(following, 1)[0].text == "line 550"
    assert log.find("line 55", following, backwards=True) == place
    assert log.find("nothing like it", 0) is None
    assert log.find("", 0) is None
    assert log.find("line 999", 0, stop=lambda: True) is None


def test_all_lines_that_hold_a_text_are_counted(log: LogFile) -> None:
    places = log.places("LINE 55", 100)
    assert [log.after(place, 1)[0].text for place in places] == [
        "line 55",
        *(f"line 55{i}" for i in range(10)),
    ]
    assert log.places("line", 7) == [line.begin for line in log.after(0, 7)]
    assert log.places("nothing like it", 9) == log.places("", 9) == []
    assert log.places("line", 9, stop=lambda: True) == []


def test_a_log_of_a_gigabyte_is_read_where_it_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    with path.open("wb") as stream:
        stream.write(b"begin\n")
        stream.truncate(1 << 30)  # a hole: a single line of zeros
        stream.seek(0, 2)
        stream.write(b"\nlast but one\nthe end\n")
    log = LogFile(path)
    assert [line.text for line in log.last(2)] == ["last but one", "the end"]
    assert log.after(0, 1)[0].text == "begin"
    place = log.find("last but", log.size_bytes(), backwards=True)
    assert place is not None
    assert log.after(place, 1)[0].text == "last but one"


def test_what_a_terminal_would_obey_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"\x1b[31mred\x1b[0m\x07 \x9b2J\tx\r\n\xff\xfe broken\n")
    lines = [line.text for line in LogFile(path).after(0, 9)]
    assert lines == ["red \ufffd2J x", "\ufffd\ufffd broken"]


def test_no_file_is_an_empty_log_and_a_folder_an_error(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "none")
    assert (log.size_bytes(), log.after(0, 5), log.last(5), log.find("x", 0)) == (0, [], [], None)
    with pytest.raises(StorageFailed):
        LogFile(tmp_path).after(0, 1)


_PARTS = st.binary(max_size=30) | st.tuples(st.binary(min_size=1, max_size=2), st.integers(2045, 4100)).map(
    lambda part: part[0] * part[1]
)


@settings(max_examples=60)
@given(st.lists(_PARTS, max_size=12), st.data())
def test_any_bytes_are_lines_without_gaps(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    content = b"\n".join(parts)
    path.write_bytes(content)
    log = LogFile(path)
    lines = log.after(0, 10_000)
    assert [line.begin for line in lines] == [0, *(line.end for line in lines[:-1])][: len(lines)]
    assert (lines[-1].end if lines else 0) == len(content)
    assert all(
        line.end - line.begin <= LONGEST_LINE and line.text.replace("\xa0", "").isprintable()
        for line in lines
    )
    back = log.last(len(lines)) if lines else []
    assert [line.text for line in back][-1:] == [line.text for line in lines][-1:]
    if all(len(part) < LONGEST_LINE for part in parts):
        assert back == lines
    wanted = data.draw(st.sampled_from(["a", "\x00", "ab"]))
    place = log.find(wanted, 0)
    assert (place is not None) == (wanted.encode().lower() in content.lower())
    if place is not None:
        assert place in {line.begin for line in lines}


def test_a_text_across_two_pieces_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "_PIECE", 64)
    monkeypatch.setattr(log_file, "_SEARCHED", 64)
    path = tmp_path / "x.log"
    for gap in range(40, 90):
        path.write_bytes(b"x" * gap + b"\n" + b"y" * 10 + b"needle\nafter\n" + b"z" * 100)
        log = LogFile(path)
        found = log.find("needle", 0)
        assert found == gap + 1
        assert log.find("needle", log.size_bytes(), backwards=True) is not None


def test_a_text_across_pieces_of_a_line_without_end_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "_SEARCHED", 64)
    path = tmp_path / "x.log"
    for gap in range(9_000, 9_130):
        path.write_bytes(b"begin\n" + b"x" * gap + b"Needle" + b"y" * 5_000 + b"needle")
        log = LogFile(path)
        parts = [6 + LONGEST_LINE * number for number in range(9)]
        places = log.places("needle", 9)
        assert places == [max(p for p in parts if p <= at) for at in (6 + gap, 6 + gap + 5_006)]
        assert log.find("needle", 0) == places[0]
        assert log.find("needle", 0, until=places[0]) is None
        back = log.find("needle", 6 + gap + 3, backwards=True)
        assert back is not None
        assert back <= 6 + gap < back + LONGEST_LINE
        assert log.find("needle", log.size_bytes(), backwards=True, until=log.size_bytes()) is None


def test_a_search_holds_little_of_a_line_without_end_and_reads_no_more_than_it_was_told(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.log"
    with path.open("wb") as stream:
        stream.write(b"begin\n")
        stream.truncate(64 << 20)
        stream.seek(0, 2)
        stream.write(b"needle")
    asked = 0

    def enough() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    log = LogFile(path)
    tracemalloc.start()
    assert log.find("needle", 0) is not None
    assert len(log.places("needle", 9)) == 1
    assert log.find("begin", log.size_bytes(), backwards=True) == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    # Between two questions it reads a piece.
    assert log.find("needle", 0, stop=enough) is None
    assert asked == 4
