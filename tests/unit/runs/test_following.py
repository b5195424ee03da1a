"""Events of a run read while they are written: whole lines, in order, a bounded amount at a time."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.runs import following
from mlbundle.runs.folder import RunFolder
from mlbundle.runs.following import EventTail, follow_events
from mlbundle.wire.events import End, Event, Log, Phase

RUN_ID = "20261121T120000Z-00000{}"


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[RunFolder]:
    """A run that this test drives."""
    with RunFolder(tmp_path, RUN_ID.format(1)) as folder:
        yield folder


def line(number: int, message: str = "x") -> bytes:
    event = Log(message=message, seq=number, source="host", t_ns=1)
    return json.dumps(event.to_document()).encode() + b"\n"


def numbers(events: list[Event]) -> list[int]:
    return [event.seq for event in events]


LINES = st.one_of(
    st.integers(0, 99).map(line),
    st.text(max_size=30).map(lambda text: line(100, text)),
    st.sampled_from(
        [b"\n", b"{}\n", b"[1]\n", b'{"kind":"new"}\n', b'{"kind":"log","message":3}\n', b"\xff\x00\n"]
    ),
    st.just(b"[" * 5000 + b"\n"),
)


@given(st.lists(LINES, max_size=20), st.lists(st.integers(0, 400), max_size=12))
def test_however_it_comes_the_same_events_are_read(lines: list[bytes], cuts: list[int]) -> None:
    content = b"".join(lines)
    places = [0, *sorted(min(cut * 7, len(content)) for cut in cuts), len(content)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "events.jsonl").write_bytes(content)
        whole = EventTail(folder).read()
        (folder / "events.jsonl").write_bytes(b"")
        tail, found = EventTail(folder), []
        with (folder / "events.jsonl").open("ab", buffering=0) as stream:
            for start, end in zip(places, places[1:], strict=False):
                stream.write(content[start:end])
                found += tail.read()
        tail.close()
    assert found == whole
    assert len(whole) == sum(b'"seq"' in text for text in lines)


def test_a_half_line_waits_for_its_other_half(tmp_path: Path) -> None:
    tail = EventTail(tmp_path)
    assert tail.read() == [], "there is no file yet"
    with (tmp_path / "events.jsonl").open("ab", buffering=0) as stream:
        stream.write(line(0) + line(1)[:20])
        assert numbers(tail.read()) == [0]
        assert tail.read() == []
        stream.write(line(1)[20:])
        assert numbers(tail.read()) == [1]
    tail.close()


def test_a_call_reads_a_bounded_amount(tmp_path: Path) -> None:
    content = b"".join(line(number, "y" * 1000) for number in range(3000))
    (tmp_path / "events.jsonl").write_bytes(content)
    tail, found, calls = EventTail(tmp_path), [], 0
    while calls == 0 or tail.behind:
        events = tail.read()
        assert len(events) < 1100
        found += events
        calls += 1
    assert calls == 1 + len(content) // (1 << 20)
    assert numbers(found) == list(range(3000))


def test_a_line_without_an_end_is_not_kept_for_ever(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"z" * (5 << 20) + b"\n" + line(7))
    tail, found = EventTail(tmp_path), []
    while not found:
        found = tail.read()
        assert len(tail._rest) <= following.MOST_LINE_BYTES
    assert numbers(found) == [7]


def test_the_end_of_a_file_alone(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"".join(line(number) for number in range(100)))
    assert numbers(EventTail(tmp_path, last_bytes=3 * len(line(99))).read())[-2:] == [98, 99]
    assert numbers(EventTail(tmp_path, last_bytes=250).read())[-1] == 99
    assert len(EventTail(tmp_path, last_bytes=1 << 20).read()) == 100


def test_following_goes_on_until_the_end(owned: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    owned.append(Log(message="was"), source="host")
    slept: list[float] = []

    def meanwhile(seconds: float) -> None:
        slept.append(seconds)
        owned.append(Phase(name="measure") if len(slept) == 1 else End(), source="host")

    monkeypatch.setattr(following.time, "sleep", meanwhile)
    kinds = [event.kind for event in follow_events(owned.path)]
    assert kinds == ["log", "phase", "end"]
    assert min(slept) >= 0.25, "not more than four times a second"
    assert [event.seq for event in follow_events(owned.path, from_seq=1)] == [1, 2]


def test_following_ends_when_nobody_drives_the_run(tmp_path: Path) -> None:
    with RunFolder(tmp_path, RUN_ID.format(2)) as folder:
        folder.append(Log(message="was"), source="host")
    with (folder.path / "events.jsonl").open("ab") as stream:
        stream.write(b'{"protocol": 1, "seq"')
    assert [event.kind for event in follow_events(folder.path)] == ["log"]
    assert list(follow_events(tmp_path / "not there")) == []


def test_following_ends_when_its_caller_wants(owned: RunFolder) -> None:
    asked: list[int] = []
    assert list(follow_events(owned.path, stop=lambda: bool(asked) or asked.append(1) is not None)) == []


def test_a_tail_lets_its_file_go(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(line(0))

    def is_open() -> bool:
        return any(path.resolve() == tmp_path / "events.jsonl" for path in Path("/dev/fd").iterdir())

    tail = EventTail(tmp_path)
    tail.read()
    assert is_open()
    tail.close()
    assert not is_open()


def test_a_file_that_is_cut_removed_or_replaced_is_picked_up_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(0) + line(1) + line(2)[:9])
    tail = EventTail(tmp_path)
    assert numbers(tail.read()) == [0, 1]
    with path.open("r+b") as stream:
        stream.truncate()
        assert tail.read() == []
        # Its writer goes on where it was: the begin is a hole.
        stream.seek(9)
        stream.write(b"\n" + line(2))
        stream.flush()
        assert numbers(tail.read()) == [2]
    path.unlink()
    assert tail.read() == []
    path.write_bytes(line(1) + line(2) + line(3))
    assert numbers(tail.read()) == [3], "what was told is not told again"
    (tmp_path / "other").write_bytes(line(4))
    (tmp_path / "other").rename(path)
    assert numbers(tail.read()) == [4]
    # Another run's file, or another boot's, begins to count anew.
    path.unlink()
    path.write_bytes(json.dumps(Log(message="x", seq=0, t_ns=9).to_document()).encode() + b"\n")
    assert numbers(tail.read()) == [0]
    tail.close()


def test_a_line_of_many_mebibytes_takes_no_more_memory_than_others(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with path.open("wb") as stream:
        stream.truncate(100 << 20)
        stream.seek(0, 2)
        stream.write(b"\n" + line(1))
    tail = EventTail(tmp_path)
    tracemalloc.start()
    found = numbers(list(tail.read_all()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tail.close()
    assert found == [1]
    assert peak < 16 << 20
