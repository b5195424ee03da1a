"""The strict ustar subset, against Python's own reader and by hand."""

from __future__ import annotations

import contextlib
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.bundle import tarformat
from mlbundle.errors import BundleCorrupt

names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=20)
paths = st.lists(names, min_size=1, max_size=12).map("/".join)


def make(files: dict[str, bytes]) -> bytes:
    members = [tarformat.encode_header(p, len(d)) + d + tarformat.padding(len(d)) for p, d in files.items()]
    return b"".join(members) + bytes(tarformat.END_BYTES)


def scan(data: bytes, limit: int = 100) -> list[tarformat.Member]:
    return list(tarformat.scan(lambda o, n: data[o : o + n], 0, len(data), where="t", limit=limit))


@given(st.dictionaries(paths, st.binary(max_size=1100), max_size=5))
def test_what_we_write_we_and_others_read(files: dict[str, bytes]) -> None:
    fitting = {path: data for path, data in files.items() if tarformat.split_name(path) is not None}
    data = make(fitting)
    assert {m.name: data[m.offset : m.offset + m.size_bytes] for m in scan(data)} == fitting
    if fitting:
        with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8") as archive:
            assert {i.name: (i.mode, i.uid, i.mtime, i.size) for i in archive.getmembers()} == {
                p.rstrip("/"): (0o644, 0, 0, len(d)) for p, d in fitting.items()
            }


@given(st.binary(max_size=3000))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(BundleCorrupt):
        assert make({m.name: data[m.offset : m.offset + m.size_bytes] for m in scan(data)}) == data


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("a", (b"", b"a")),
        ("n" * 100, (b"", b"n" * 100)),
        ("n" * 101, None),
        ("d" * 55 + "/" + "n" * 100, (b"d" * 55, b"n" * 100)),
        ("d" * 55 + "/" + "n" * 101, None),
        ("d" * 155 + "/" + "n" * 100, (b"d" * 155, b"n" * 100)),
        ("d" * 156 + "/" + "n", None),
        ("d/" * 60 + "n", (b"d/" * 59 + b"d", b"n")),
    ],
)
def test_long_names_split_at_the_last_slash_that_fits(path: str, split: tuple[bytes, bytes] | None) -> None:
    assert tarformat.split_name(path) == split


def test_sizes_that_ustar_cannot_hold_get_a_pax_header() -> None:
    limit = 8 * 2**30
    assert len(tarformat.encode_header("w", limit - 1)) == tarformat.header_bytes(limit - 1) == 512
    head = tarformat.encode_header("w", limit)
    assert len(head) == tarformat.header_bytes(limit) == 1536
    assert head[512:532] == b"19 size=8589934592\n\0"
    with tarfile.open(fileobj=io.BytesIO(head)) as archive:
        assert archive.firstmember is not None
        assert (archive.firstmember.name, archive.firstmember.size) == ("w", limit)
    end = 1536 + limit
    whole = {0: head, end: bytes(1024)}

    def read_at(offset: int, count: int) -> bytes:
        start = max(o for o in whole if o <= offset)
        return whole[start][offset - start : offset - start + count]

    (member,) = tarformat.scan(read_at, 0, end + 1024, where="t", limit=1)
    assert (member.name, member.size_bytes, member.offset, member.end) == ("w", limit, 1536, end)


def test_padding_and_blocks_by_hand() -> None:
    assert [tarformat.padded(n) for n in (0, 1, 511, 512, 513)] == [0, 512, 512, 512, 1024]
    assert len(tarformat.padding(1)) == 511
    assert make({}) == bytes(1024)
    assert scan(bytes(1024)) == []


def test_members_are_capped() -> None:
    data = make({str(n): b"" for n in range(5)})
    assert len(scan(data, limit=5)) == 5
    with pytest.raises(BundleCorrupt, match="more than 4"):
        scan(data, limit=4)


@pytest.mark.parametrize(("path", "mode"), [("n" * 101, 0o644), ("a", 0o600), ("a", 0o4755)])
def test_what_has_no_header_is_not_written(path: str, mode: int) -> None:
    with pytest.raises(ValueError, match="no ustar header"):
        tarformat.encode_header(path, 0, mode)
