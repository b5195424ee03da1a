"""The bytes that the writer makes, read back with the protobuf classes."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from mlbundle.errors import StorageFailed
from mlbundle.trace.columns import SliceColumns
from mlbundle.trace.packets import PacketStream, clean, varint
from mlbundle.trace.perfetto import trace_writer

CLOCKS = {"monotonic": 1_000, "realtime": 1_700_000_000_000_000_000, "boottime": 2_000}


def packets_of(path: Path):
    return Trace.FromString(gzip.decompress(path.read_bytes())).packet


def column(*values):
    return np.array(values, np.int64)


def write_some(path: Path) -> None:
    with trace_writer(path, CLOCKS) as writer:
        writer.attributes({"bundle": "digits:1.0", "queries": 3})
        process = writer.process("worker", pid=7)
        track = writer.track("query", process)
        writer.slice(track, "a", 10, 20, category="model", args={"n": 1}, flows=(5,))
        writer.slices(
            writer.track("bulk", process), SliceColumns(column(1, 5), column(3, 2), column(0, 1), ("x", "y"))
        )
        writer.count(writer.counter_track("rate", process, unit="1/s"), 15, 2.5)


def test_the_same_calls_make_the_same_bytes(tmp_path: Path) -> None:
    write_some(tmp_path / "one.pftrace.gz")
    write_some(tmp_path / "two.pftrace.gz")
    assert (tmp_path / "one.pftrace.gz").read_bytes() == (tmp_path / "two.pftrace.gz").read_bytes()


def test_the_gzip_header_has_no_name_and_no_time(tmp_path: Path) -> None:
    write_some(tmp_path / "t.gz")
    header = (tmp_path / "t.gz").read_bytes()[:10]
    assert header[:3] == b"\x1f\x8b\x08"
    assert header[3] == 0
    assert header[4:8] == bytes(4)


def test_every_packet_is_of_the_sequence_and_only_the_first_opens_it(tmp_path: Path) -> None:
    write_some(tmp_path / "t.gz")
    first, *others = packets_of(tmp_path / "t.gz")
    assert first.sequence_flags == 3
    assert first.trace_packet_defaults.timestamp_clock_id == 3
    assert {packet.sequence_flags for packet in others} == {2}
    assert {packet.trusted_packet_sequence_id for packet in (first, *others)} == {1}


def test_attributes_are_written_as_such(tmp_path: Path) -> None:
    write_some(tmp_path / "t.gz")
    found = [a for p in packets_of(tmp_path / "t.gz") for a in p.trace_attributes.attribute]
    assert [(a.key, a.string_value, a.long_value) for a in found] == [
        ("bundle", "digits:1.0", 0),
        ("queries", "", 3),
    ]


def test_ends_carry_the_name_of_their_begin(tmp_path: Path) -> None:
    write_some(tmp_path / "t.gz")
    packets = packets_of(tmp_path / "t.gz")
    names = {n.iid: n.name for p in packets for n in p.interned_data.event_names}
    ends = [names[p.track_event.name_iid] for p in packets if p.track_event.type == TrackEvent.TYPE_SLICE_END]
    assert sorted(ends) == ["a", "x", "y"]


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError, match="stop"), trace_writer(path, CLOCKS):
        raise RuntimeError("stop")
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["t.gz"]


def test_a_folder_that_can_not_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailed) as caught, trace_writer(tmp_path / "file" / "t.gz", CLOCKS):
        pass
    assert caught.value.hint
    assert str(tmp_path) in (caught.value.where or "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdopen

    def full(descriptor: int, mode: str):
        os.close(descriptor)
        return real(os.open("/dev/full", os.O_WRONLY), mode)

    monkeypatch.setattr(os, "fdopen", full)
    with (
        pytest.raises(StorageFailed, match="No space left"),
        trace_writer(tmp_path / "t.gz", CLOCKS) as writer,
    ):
        writer.process("worker", pid=1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (10, 9), (4, 8)])
def test_a_slice_out_of_order_is_refused(tmp_path: Path, start: int, end: int) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        track = writer.track("t", writer.process("p", pid=1))
        writer.slice(track, "before", 5, 6)
        with pytest.raises(ValueError, match="out of order"):
            writer.slice(track, "x", start, end)


def test_an_instant_out_of_order_is_refused(tmp_path: Path) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        track = writer.track("t", writer.process("p", pid=1))
        writer.slice(track, "before", 5, 6)
        with pytest.raises(ValueError, match="out of order"):
            writer.instant(track, "x", 4)


def test_columns_are_the_only_events_of_their_track(tmp_path: Path) -> None:
    columns = SliceColumns(column(1), column(1), column(0), ("a",))
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        process = writer.process("p", pid=1)
        rows, bulk = writer.track("rows", process), writer.track("bulk", process)
        writer.slice(rows, "x", 0, 1)
        writer.slices(bulk, columns)
        for track in (rows, bulk):
            with pytest.raises(ValueError, match="has events already"):
                writer.slices(track, columns)
        with pytest.raises(ValueError, match="out of order"):
            writer.slice(bulk, "x", 100, 200)


@pytest.mark.parametrize(
    "columns",
    [
        SliceColumns(column(1, 2), column(1), column(0, 0), ("a",)),
        SliceColumns(column(-1), column(1), column(0), ("a",)),
        SliceColumns(column(1), column(-1), column(0), ("a",)),
        SliceColumns(column(2**63 - 1), column(1), column(0), ("a",)),
        SliceColumns(column(1), column(1), column(0), ("a",), parent=column(-1, -1)),
        SliceColumns(column(1), column(1), column(0), ("a",), numbers={"n": column()}),
        SliceColumns(column(1), column(1), column(0), ("a",), texts={"n": column(0, 0)}),
        SliceColumns(column(1), column(1), column(0), ("a",), joins_flow=column()),
        SliceColumns(column(1), column(1), column(0), ("a",), flow_count=column(1)),
        SliceColumns(column(1), column(1), column(0), ("a",), flow=column(1), flow_count=column(-1)),
    ],
)
def test_columns_that_make_no_sense_are_refused(tmp_path: Path, columns: SliceColumns) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        track = writer.track("t", writer.process("p", pid=1))
        with pytest.raises(ValueError, match=r"different lengths|begins before|flows are counted"):
            writer.slices(track, columns)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**63, "80808080808080808001")],
)
def test_varints_are_those_of_the_format(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded


def test_text_that_perfetto_can_not_hold_is_replaced() -> None:
    assert clean("plain é") == "plain é"
    assert clean("a\0b") == "a\ufffdb"
    assert clean("\ud800") == "?"


def test_a_packet_longer_than_all_others_is_framed_as_well(tmp_path: Path) -> None:
    with (tmp_path / "t.gz").open("wb") as stream:
        packets = PacketStream(stream)
        packets.name("n" * 300_000)
        packets.close()
    assert packets_of(tmp_path / "t.gz")[1].interned_data.event_names[0].name == "n" * 300_000


spans = st.lists(
    st.tuples(
        st.integers(0, 2**62 - 1) | st.integers(0, 20),
        st.integers(0, 2**62) | st.integers(0, 10),
        st.integers(0, 3),
        st.integers(0, 2**62) | st.integers(0, 2),
        st.integers(0, 40),
        st.integers(0, 2**63 - 1) | st.integers(0, 2),
        st.integers(-1, 2**63 - 1) | st.integers(-1, 2),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(spans)
def test_columns_say_the_same_as_rows(tmp_path_factory: pytest.TempPathFactory, rows) -> None:
    """What NumPy packs is read by protobuf as begins and ends with the fields that rows would have."""
    path = tmp_path_factory.mktemp("trace") / "t.gz"
    names = ("a", "", "c\0", "名" * 200)
    start, duration, name, flow, count, joined, query, text = np.array(rows, np.int64).reshape(-1, 8).T
    columns = SliceColumns(
        start, duration, name, names, category="model", flow=flow, flow_count=count, joins_flow=joined,
        numbers={"query": query}, texts={"type": text},
    )  # fmt: skip
    with trace_writer(path, CLOCKS) as writer:
        writer.slices(writer.track("t", writer.process("p", pid=1)), columns)
    packets = packets_of(path)
    known = {n.iid: n.name for p in packets for n in p.interned_data.event_names}
    values = {v.iid: v.str.decode() for p in packets for v in p.interned_data.debug_annotation_string_values}
    keys = {n.iid: n.name for p in packets for n in p.interned_data.debug_annotation_names}
    begins, ends = [], []
    for packet in packets:
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert list(event.category_iids) == [1]
            notes = {
                keys[note.name_iid]: values[note.string_value_iid]
                if note.string_value_iid
                else note.int_value
                for note in event.debug_annotations
            }
            begins.append(
                (packet.timestamp, known[event.name_iid], sorted(event.flow_ids), sorted(notes.items()))
            )
        elif event.type == TrackEvent.TYPE_SLICE_END:
            ends.append((packet.timestamp, known[event.name_iid]))
    wanted = []
    for start_ns, _, title, first, flows, other, number, kind in rows:
        ids = [*range(first, first + flows)] if first else []
        notes = {"query": number} if number >= 0 else {}
        notes |= {"type": clean(names[kind])} if names[kind] else {}
        wanted.append(
            (start_ns, clean(names[title]), sorted(ids + [other] * bool(other)), sorted(notes.items()))
        )
    assert sorted(begins) == sorted(wanted)
    assert sorted(ends) == sorted((row[0] + row[1], clean(names[row[2]])) for row in rows)


def test_a_slice_may_have_more_flows_than_fit_a_few_bytes(tmp_path: Path) -> None:
    columns = SliceColumns(column(1), column(1), column(0), ("a",), flow=column(9), flow_count=column(70_000))
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        writer.slices(writer.track("t", writer.process("p", pid=1)), columns)
    flows = [flow for packet in packets_of(tmp_path / "t.gz") for flow in packet.track_event.flow_ids]
    assert flows == list(range(9, 70_009))


def test_values_of_a_counter_before_zero_are_refused(tmp_path: Path) -> None:
    with trace_writer(tmp_path / "t.gz", CLOCKS) as writer:
        counter = writer.counter_track("c", writer.process("p", pid=1))
        with pytest.raises(ValueError, match="before zero"):
            writer.counts(counter, column(3, -1), np.array([1.0, 2.0]))
        assert writer.counts(counter, column(3, 4), np.array([1.0, np.nan])) == 1
