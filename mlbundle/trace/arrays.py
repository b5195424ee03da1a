"""Reads `.npz` files of int64 columns and a table of strings without believing what they say of themselves."""

from __future__ import annotations

import io
import sys
import tokenize
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

STRINGS = "strings"
MAX_STRINGS = 65_536
MAX_STRING_CHARACTERS = 1024
_MAX_FILE_BYTES = 1 << 30
MAX_TABLE_BYTES = 64 << 20
_MAX_HEADER_BYTES = 4096
# What zipfile and NumPy raise for bytes that are not what they expect.
UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


def read_arrays(
    path: Path, required: Sequence[str], optional: Sequence[str], most_rows: int
) -> dict[str, Any]:
    """Return the arrays of an `.npz` by name: int64 columns, and strings for the table `strings`.

    NumPy's own loader believes the sizes that it is told. Raises one of UNREADABLE.
    """
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"more than {_MAX_FILE_BYTES} bytes")
    names = (*required, *optional)
    caps = dict.fromkeys(names, 8 * most_rows) | {STRINGS: MAX_TABLE_BYTES}
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if len(members) != len(archive.infolist()) or not set(required) <= set(members) <= set(names):
            raise ValueError(f"the members are {sorted(members)[:20]}")
        arrays = {}
        for name, info in members.items():
            if info.file_size > caps[name] + _MAX_HEADER_BYTES:
                raise ValueError(f"{name} has {info.file_size} bytes")
            if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise ValueError(f"{name} is compressed in an unknown way")
            arrays[name] = _array(archive.read(info), name, most_rows)
        return arrays


def _array(content: bytes, name: str, most_rows: int) -> NDArray[Any]:
    """Return the array of an `.npy` of version 1; only int64 columns, and strings for the table."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{name} is of an unknown version")
    try:
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER_BYTES)
    except tokenize.TokenError as error:  # from Python 3.12 on NumPy lets the tokenizer's own error through
        raise ValueError(f"the header of {name} can't be read: {error}") from error
    is_table = name == STRINGS
    expected = (
        dtype == np.dtype(f"<U{dtype.itemsize // 4}") and dtype.itemsize if is_table else dtype == "<i8"
    )
    if not expected or len(shape) != 1 or len(content) - stream.tell() != shape[0] * dtype.itemsize:
        raise ValueError(f"{name} is {dtype} of shape {shape}")
    limit = MAX_STRINGS if is_table else most_rows
    if shape[0] > limit:
        raise ValueError(f"{name} has {shape[0]} rows, at most {limit} are read")
    if is_table and np.frombuffer(content, "<u4", offset=stream.tell()).max(initial=0) > sys.maxunicode:
        raise ValueError(f"{name} holds what is no character")  # CPython itself would stop with a SystemError
    return np.frombuffer(content, dtype, offset=stream.tell())
