"""Spans survive their file; a file that breaks a rule is refused with an error that names it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from span_samples import recorded, spans_of

from mlbundle.errors import ProtocolBroken, StorageFailed
from mlbundle.trace.arrays import MAX_STRINGS
from mlbundle.trace.spans import check_spans, load_spans, merge_spans, save_spans
from mlbundle.worker.spans import SpanRecorder

COLUMNS = ("level", "track", "name", "start_ns", "duration_ns", "parent", "query")


def same(one, other) -> bool:
    return one.strings == other.strings and all(
        np.array_equal(column, other.columns()[name]) for name, column in one.columns().items()
    )


def arrays(rows: int = 2) -> dict[str, np.ndarray]:
    """The arrays of a sound file."""
    found = {name: np.zeros(rows, np.int64) for name in COLUMNS}
    found["level"] += 1
    found["parent"] -= 1
    return found | {"strings": np.array(["query"])}


def write(path: Path, **changed) -> Path:
    np.savez(path, **{name: value for name, value in (arrays() | changed).items() if value is not None})
    return path


def refused(path: Path, words: str) -> None:
    with pytest.raises(ProtocolBroken, match=words) as caught:
        load_spans(path)
    assert caught.value.where == str(path)


def test_what_the_worker_sends_is_read(tmp_path: Path) -> None:
    recorder = SpanRecorder(True)
    recorder.add("decode", "decode", 100, 150, 7)
    recorder.add("load", "load", 0, 90)
    recorder.add_queries([200, 300], [290, 395], 0)
    spans = recorded(recorder, tmp_path / "spans.npz")
    table = [
        (spans.strings[t], spans.strings[n], *map(int, others))
        for t, n, *others in zip(
            spans.track, spans.name, spans.start_ns, spans.duration_ns, spans.parent, spans.query, strict=True
        )
    ]
    assert table == [
        ("decode", "decode", 100, 50, -1, 7),
        ("load", "load", 0, 90, -1, -1),
        ("query", "query", 200, 90, -1, 0),
        ("query", "query", 300, 95, -1, 1),
        ("query", "predict", 200, 90, 2, 0),
        ("query", "predict", 300, 95, 3, 1),
    ]
    assert spans.pass_number.tolist() == [0] * 6
    assert spans.end_ns.tolist() == [150, 90, 290, 395, 290, 395]


def test_a_worker_that_recorded_nothing_sends_no_rows(tmp_path: Path) -> None:
    assert len(recorded(SpanRecorder(True), tmp_path / "spans.npz")) == 0


def test_saved_spans_are_read_back_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    spans = spans_of(("query", "query", 5, 9, -1, 0), ("query", "predict", 5, 9, 0, 0), pass_number=3)
    save_spans(tmp_path / "one.npz", spans)
    save_spans(tmp_path / "two.npz", load_spans(tmp_path / "one.npz"))
    assert same(load_spans(tmp_path / "one.npz"), spans)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["one.npz", "two.npz"]


def test_a_folder_that_can_not_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailed):
        save_spans(tmp_path / "file" / "spans.npz", spans_of())


def test_merged_passes_keep_their_parents_and_get_numbers() -> None:
    one = spans_of(("query", "query", 5, 9, -1, 0), ("query", "predict", 5, 9, 0, 0))
    two = spans_of(("decode", "decode", 50, 9, -1, 0), ("query", "predict", 60, 9, 0, 0))
    merged = merge_spans([one, spans_of(), two])
    assert merged.strings == ("query", "predict", "decode")
    assert merged.parent.tolist() == [-1, 0, -1, 2]
    assert merged.pass_number.tolist() == [0, 0, 2, 2]
    assert [merged.strings[i] for i in merged.track] == ["query", "query", "decode", "query"]
    assert same(merge_spans([merged]), merged)


def test_no_passes_merge_to_no_spans(tmp_path: Path) -> None:
    merged = merge_spans([])
    assert len(merged) == 0
    save_spans(tmp_path / "spans.npz", merged)
    assert len(load_spans(tmp_path / "spans.npz")) == 0


def test_a_part_that_was_moved_before_zero_is_refused() -> None:
    spans = spans_of(("query", "query", 5, 9, -1, 0))
    with pytest.raises(ProtocolBroken, match="times are not negative"):
        merge_spans([dataclasses.replace(spans, start_ns=spans.start_ns - 6)])


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("level", 0, "levels are 1, 2 or 3"),
        ("level", 4, "levels are 1, 2 or 3"),
        ("track", 1, "tracks are in the table"),
        ("track", -1, "tracks are in the table"),
        ("name", 1, "names are in the table"),
        ("start_ns", -1, "not negative"),
        ("duration_ns", -1, "not negative"),
        ("start_ns", 2**63 - 1, "63 bits"),
        ("parent", 1, "parents are earlier rows"),
        ("parent", 2**40, "parents are earlier rows"),
        ("parent", -2, "parents are earlier rows"),
        ("query", -2, "queries are -1 or more"),
        ("pass", -1, "passes are 0 or more"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(tmp_path: Path, column: str, value: int, words: str) -> None:
    found = arrays() | {"pass": np.zeros(2, np.int64)}
    found["duration_ns"][:] = 1
    found[column][1] = value
    np.savez(tmp_path / "spans.npz", **found)
    refused(tmp_path / "spans.npz", words)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"query": None}, "the members are"),
        ({"extra": np.zeros(2, np.int64)}, "the members are"),
        ({"query": np.zeros(3, np.int64)}, "one length"),
        ({"query": np.zeros(2, np.int32)}, "query is int32"),
        ({"query": np.zeros(2, ">i8")}, "query is >i8"),
        ({"query": np.zeros(2)}, "query is float64"),
        ({"query": np.zeros((2, 1), np.int64)}, r"shape \(2, 1\)"),
        ({"query": np.int64(1)}, r"shape \(\)"),
        ({"query": np.array([None, {}])}, "query is object"),
        ({"strings": np.array([b"query"])}, r"strings is \|S5"),
        ({"strings": np.array(["query", "a\nb"])}, "names are printable"),
        ({"strings": np.array(["query", "\ud800"])}, "names are printable"),
        ({"strings": np.array(["x" * 1025])}, "at most 1024 characters"),
        ({"strings": np.array(["x"] * (MAX_STRINGS + 1))}, "65537 rows"),
        ({"strings": np.array([0x110000], np.uint32).view("U1")}, "no character"),
        ({"strings": np.array(["query"], ">U5")}, r"strings is >U5"),
    ],
)
def test_a_column_that_is_no_column_is_refused(tmp_path: Path, changed, words: str) -> None:
    refused(write(tmp_path / "spans.npz", **changed), words)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    write(tmp_path / "spans.npz", query=np.array([Trap(), Trap()], dtype=object))
    refused(tmp_path / "spans.npz", "query is object")
    assert not (tmp_path / "sprung").exists()


def member(name: str, content: bytes, path: Path, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """A file that is sound but for one member."""
    write(path, **{name: None})
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr(f"{name}.npy", content)
    return path


def header(shape: str, descr: str = "'<i8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header("(99999999999999,)"), "query is int64 of shape"),
        (header("(-1,)") + bytes(8), "read|shape"),
        (header("(2,)") + bytes(15), "query is int64 of shape"),
        (header("(2,)") + bytes(17), "query is int64 of shape"),
        (header("(2,)", "'|O'") + bytes(16), "query is object"),
        (header("(2,)", "[('a', '<i8')]") + bytes(16), "query is"),
        (header("(" * 200 + ")" * 200) + bytes(16), "can't be read"),
        (header("(2,)", "'nonsense'") + bytes(16), "can't be read"),
        (b"\x93NUMPY\x09\x00" + bytes(20), "unknown version"),
        (b"", "can't be read"),
        (b"nothing of the kind", "can't be read"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 10, "can't be read"),
    ],
)
def test_a_member_that_lies_about_its_size_or_kind_is_refused(
    tmp_path: Path, content: bytes, words: str
) -> None:
    refused(member("query", content, tmp_path / "spans.npz"), words)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "spans.npz"
    write(path, query=None)
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("query.npy", "w") as stream,
    ):
        for _ in range(65):
            stream.write(bytes(1 << 20))
    assert path.stat().st_size < 200_000
    refused(path, "query has 68157440 bytes")


def test_other_compressions_and_duplicates_are_refused(tmp_path: Path) -> None:
    content = header("(2,)") + bytes(16)
    refused(member("query", content, tmp_path / "lzma.npz", zipfile.ZIP_LZMA), "compressed in an unknown way")
    path = write(tmp_path / "twice.npz")
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("query.npy", content)
    refused(path, "the members are")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.npz", "No such file")


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_damage_is_refused_or_harmless(tmp_path: Path, data) -> None:
    """Whatever bytes are changed: the file is read as spans that keep the rules, or ProtocolBroken says why not."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays(5))
    content = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    path = tmp_path / "damaged.npz"
    path.write_bytes(content[:cut])
    with contextlib.suppress(ProtocolBroken):
        check_spans(load_spans(path))
