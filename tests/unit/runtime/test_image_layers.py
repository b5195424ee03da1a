"""Layers unpacked as they come: what any cut of the stream gives, and what a stranger's bytes can't do."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.bundle.zstdio import Compressor
from mlbundle.errors import BundleCorrupt
from mlbundle.runtime.image_layers import Encoding, encoding_of, unpacker


def zstd(data: bytes) -> bytes:
    compressor = Compressor()
    return compressor.compress(data) + compressor.finish()


PACKERS = {Encoding.TAR: bytes, Encoding.GZIP: gzip.compress, Encoding.ZSTD: zstd}


def unpack(encoding: Encoding, blob: bytes, limit: int, cut: int = 1 << 30) -> bytes:
    unpacking = unpacker(encoding, limit, "layer 3")
    pieces = [bytes(p) for i in range(0, len(blob), cut) for p in unpacking.feed(blob[i : i + cut])]
    unpacking.finish()
    assert all(len(piece) <= 1 << 20 for piece in pieces)
    return b"".join(pieces)


@given(
    data=st.binary(max_size=300) | st.binary(min_size=1, max_size=30).map(lambda b: b * 3000),
    encoding=st.sampled_from(list(Encoding)),
    cut=st.integers(1, 100_000),
)
def test_a_layer_is_the_same_however_it_comes_and_never_over_its_limit(data, encoding, cut) -> None:
    blob = PACKERS[encoding](data)
    cut = max(cut, len(blob) // 50)
    assert unpack(encoding, blob, len(data), cut) == data
    if data:
        with pytest.raises(BundleCorrupt) as caught:
            unpack(encoding, blob, len(data) - 1, cut)
        assert caught.value.where == "layer 3"
    if encoding is not Encoding.TAR:
        assert encoding_of(blob) is encoding


@given(parts=st.lists(st.binary(max_size=50), min_size=1, max_size=6), cut=st.integers(1, 200))
def test_gzip_of_several_members_is_one_layer(parts, cut) -> None:
    blob = b"".join(map(gzip.compress, parts))
    assert unpack(Encoding.GZIP, blob, 300, cut) == b"".join(parts)


def test_pieces_that_are_full_have_more_behind_them() -> None:
    for size in ((1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20):
        for data in (bytes(size), random.Random(0).randbytes(size)):
            assert unpack(Encoding.GZIP, gzip.compress(data), size) == data


@pytest.mark.parametrize("encoding", [Encoding.GZIP, Encoding.ZSTD])
def test_truncation_trailing_bytes_and_flips_are_refused_or_seen(encoding) -> None:
    data = bytes(range(200))
    blob = PACKERS[encoding](data)
    for end in range(len(blob)):
        with pytest.raises(BundleCorrupt):
            unpack(encoding, blob[:end], 200)
    for tail in (b"\0", b"\0" * 600, b"tail"):
        with pytest.raises(BundleCorrupt):
            unpack(encoding, blob + tail, 200)
    for position in range(len(blob) * 8):
        flipped = bytearray(blob)
        flipped[position // 8] ^= 1 << position % 8
        try:
            assert len(unpack(encoding, bytes(flipped), 200)) <= 200
        except BundleCorrupt:
            continue


@given(st.binary(max_size=200))
def test_any_bytes_as_gzip_are_read_or_refused(tail) -> None:
    for start in (b"", b"\x1f\x8b\x08\0\0\0\0\0\0\xff"):
        try:
            unpack(Encoding.GZIP, start + tail, 1000)
        except BundleCorrupt:
            continue


def test_a_gzip_bomb_takes_little_memory() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    produced = 0

    def swallow() -> None:
        nonlocal produced
        for piece in unpacker(Encoding.GZIP, 32 << 20, "layer 3").feed(bomb):
            produced += len(piece)

    tracemalloc.start()
    try:
        with pytest.raises(BundleCorrupt, match="more bytes than allowed"):
            swallow()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert produced <= 32 << 20
    assert peak_bytes < 6 << 20
