"""Pickles are found by their bytes; what is none is left in peace."""

from __future__ import annotations

import bz2
import io
import lzma
import os
import pickle
import random
import zipfile
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.bundle.pickles import holds_pickle


class Caller:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.getenv, ("HOME",)


def found(data: bytes) -> bool:
    return holds_pickle(lambda offset, count: data[offset : offset + count], len(data))


def npz(**arrays: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def zipped(data: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("readme.txt", "nothing to see")
        archive.writestr("deep/innocent.png", data)
    return buffer.getvalue()


objects = np.array([Caller()], dtype=object)
PICKLES = {
    "list_0": pickle.dumps([1, "two", 3.0], 0),
    "dict_1": pickle.dumps({"a": [1]}, 1),
    "scalar_2": pickle.dumps(7, 2),
    "large_bytes_5": pickle.dumps([b"x" * (1 << 20), Caller()], 5),
    "call_after_long_line_0": pickle.dumps(["x" * (1 << 20), Caller()], 0),
    "call_without_end_0": pickle.dumps(Caller(), 0)[:-1],
    "old_instance": b"(S'id'\nios\nsystem\n.",
    "zlib": zlib.compress(pickle.dumps(Caller())),
    "bz2": bz2.compress(pickle.dumps(Caller())),
    "xz": lzma.compress(pickle.dumps(Caller())),
    "lzma": lzma.compress(pickle.dumps(Caller()), lzma.FORMAT_ALONE),
    "zip_deflated": zipped(pickle.dumps(Caller(), 0)),
    "zip_stored": zipped(pickle.dumps(Caller(), 0), zipfile.ZIP_STORED),
    "zip_with_comment": zipped(pickle.dumps(Caller()))[:-2] + b"\x05\x00hello",
    "npy_objects": npy(objects),
    "npz_objects": npz(labels=objects),
    "npy_structured": npy(np.array([(1, Caller())], dtype=[("a", "i4"), ("b", "O")])),
}
INNOCENT = {
    "empty": b"",
    "labels": b"cat\ndog\n",
    "more_labels": b"cat\ndog\nbird\n",
    "digits": b"0\n1\n2\n3\n",
    "csv": b"1,2,3\n4,5,6\n",
    "dots": b"......",
    "prose": b"A pickle is a program; whoever loads it runs it.\n" * 50,
    "marks": b"(" * 100_000,
    "nones": b"N" * 100_000,
    "json": b'{"a": [1, 2]}',
    "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "jpeg": b"\xff\xd8\xff\xe0" + bytes(100),
    "onnx": b"\x08\x07\x12\x07pytorch\x1a\x051.0.0",
    "numbers": npz(x=np.arange(5), y=np.ones((2, 2), np.float32)),
    "unicode_array": npy(np.array(["Object", "'O'"])),
    "floats": np.linspace(0, 1, 1000, dtype=np.float32).tobytes(),
    "zip": zipped(b"text"),
    "gzip_of_text": zlib.compress(b"text" * 100),
    "broken_zip": zipped(b"text")[:-10],
    "zip_that_points_at_itself": b"PK\x05\x06" + bytes(6) + b"\xff\xff\x00\x00" + bytes(6),
    "random": random.Random(1).randbytes(1 << 20),
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_is_found(name: str) -> None:
    assert found(PICKLES[name])


@pytest.mark.parametrize("name", INNOCENT)
def test_what_is_no_pickle_is_left_in_peace(name: str) -> None:
    assert not found(INNOCENT[name])


@given(st.binary(max_size=600))
def test_any_bytes_get_an_answer(data: bytes) -> None:
    assert found(data) in {True, False}
    for wrapper in (b"PK", b"\x93NUMPY", b"\x1f\x8b", b"\x80\x04"):
        assert found(wrapper + data) in {True, False}


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(plain, st.integers(2, 5))
def test_every_marked_pickle_is_found(value: object, protocol: int) -> None:
    assert found(pickle.dumps(value, protocol))


@given(st.lists(plain, min_size=1), st.integers(0, 1))
def test_every_list_of_an_unmarked_protocol_is_found(value: object, protocol: int) -> None:
    assert found(pickle.dumps(value, protocol))
