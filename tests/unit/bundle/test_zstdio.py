"""Zstandard: what is written comes back, and every trick of a stranger's frame is refused with bounded memory."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.bundle.zstdio import PIECE_BYTES, Compressor, Decompressor, estimate_ratio
from mlbundle.errors import BundleCorrupt

MAGIC = bytes.fromhex("28b52ffd")
WINDOW_1_MIB, WINDOW_8_MIB = 10 << 3, 13 << 3


def compress(data: bytes, piece: int = 1 << 30, level: int = 3) -> bytes:
    compressor = Compressor(level)
    parts = [compressor.compress(data[i : i + piece]) for i in range(0, len(data), piece)]
    return b"".join([*parts, compressor.finish()])


def decompress(frame: bytes, expected: int, piece: int = 1 << 30, *, exact: bool = True) -> bytes:
    decompressor = Decompressor(expected, "layer 7", exact=exact)
    parts = [
        p for i in range(0, len(frame), piece) for p in decompressor.feed(memoryview(frame)[i : i + piece])
    ]
    decompressor.finish()
    assert all(0 < len(part) <= PIECE_BYTES for part in parts)
    return b"".join(parts)


def refused(frame: bytes, expected: int, words: str, *, exact: bool = True) -> None:
    for piece in (1 << 30, 1):
        with pytest.raises(BundleCorrupt, match=words) as caught:
            decompress(frame, expected, piece, exact=exact)
        assert caught.value.where == "layer 7"


def frame(
    blocks: bytes, *, descriptor: int = 0, window: int | None = WINDOW_1_MIB, fields: bytes = b""
) -> bytes:
    """A frame by hand: magic, frame header descriptor, window descriptor, dictionary id and content size."""
    return MAGIC + bytes([descriptor]) + (b"" if window is None else bytes([window])) + fields + blocks


def raw(data: bytes, *, last: bool = True) -> bytes:
    return (len(data) << 3 | last).to_bytes(3, "little") + data


def repeated(byte: bytes, count: int, *, last: bool = True) -> bytes:
    return (count << 3 | 1 << 1 | last).to_bytes(3, "little") + byte


@given(
    data=st.binary(max_size=5000) | st.binary(max_size=50).map(lambda b: b * 9000),
    cut_in=st.integers(1, 300_000),
    cut_out=st.integers(1, 300_000),
)
def test_what_goes_in_comes_out_however_it_is_cut(data, cut_in, cut_out) -> None:
    cut_in, cut_out = max(cut_in, len(data) // 50), max(cut_out, len(data) // 50)
    whole = compress(data)
    assert compress(data, cut_in) == whole
    assert decompress(whole, len(data), cut_out) == data
    assert decompress(whole, len(data) + 7, cut_out, exact=False) == data


def test_the_frame_states_no_size_no_checksum_no_dictionary_and_a_small_window() -> None:
    for level in (1, 3, 19):
        for data in (b"", b"x" * 100_000):
            written = compress(data, level=level)
            assert written[:5] == MAGIC + b"\0"
            assert written[5] <= WINDOW_8_MIB
            assert decompress(written, len(data)) == data
    with pytest.raises(ValueError, match="level 20"):
        Compressor(20)


def test_frames_by_hand_are_read() -> None:
    assert decompress(frame(raw(b"hello")), 5) == b"hello"
    assert decompress(frame(raw(b"hello"), window=WINDOW_8_MIB), 5) == b"hello"
    assert decompress(frame(raw(b"hello"), descriptor=0x20, window=None, fields=b"\5"), 5) == b"hello"
    two = frame(raw(b"a" * 300), descriptor=0x60, window=None, fields=(300 - 256).to_bytes(2, "little"))
    assert decompress(two, 300) == b"a" * 300
    eight = frame(raw(b"", last=False) + repeated(b"z", 9), descriptor=0xC0, fields=(9).to_bytes(8, "little"))
    assert decompress(eight, 9) == b"z" * 9


@pytest.mark.parametrize(
    ("attack", "expected", "words"),
    [
        (frame(raw(b"hello"), window=WINDOW_8_MIB + 1), 5, "window of 9437184 bytes"),
        (frame(raw(b"hello"), window=31 << 3 | 7), 5, "window of"),
        (
            frame(raw(b"hello"), descriptor=0xA0, window=None, fields=(9 << 20).to_bytes(4, "little")),
            9 << 20,
            "window of 9437184",
        ),
        (frame(raw(b"hello"), descriptor=1, fields=b"\x01"), 5, "dictionary"),
        (frame(raw(b"hello"), descriptor=3, fields=b"\0\0\0\x01"), 5, "dictionary"),
        (frame(raw(b"hello"), descriptor=8), 5, "reserved bit"),
        (frame(raw(b"hello"), descriptor=0x80, fields=(6).to_bytes(4, "little")), 5, "states 6 bytes"),
        (frame(raw(b"hello"), descriptor=0x80, fields=(6).to_bytes(4, "little")), 6, "broken|cut off"),
        (frame(raw(b"hello"), descriptor=0xC0, fields=b"\xff" * 8), 5, "states 18446744073709551615"),
        (frame(raw(b"hello"), descriptor=4) + bytes(4), 5, "broken"),
        (frame(raw(b"hello", last=False)), 5, "cut off"),
        (frame(raw(b"hello")), 4, "more than the 4 bytes"),
        (frame(raw(b"hello")), 6, "5 bytes instead of 6"),
        (frame(raw(b"hello")), 0, "more than the 0 bytes"),
        (frame(raw(b"hello")) + b"\0", 5, "after the zstd frame"),
        (frame(raw(b"hello")) + frame(raw(b"")), 5, "after the zstd frame"),
        (frame(raw(b"hello")) * 2, 10, "after the zstd frame"),
        (frame(raw(b"hello")) + bytes.fromhex("502a4d1800000000"), 5, "after the zstd frame"),
        (bytes.fromhex("5f2a4d1800000000") + frame(raw(b"hello")), 5, "skippable"),
        (frame(b"\7\0\0"), 0, "broken"),
        (b"\x1f\x8b\x08\0\0\0", 5, "no zstd frame"),
        (b"", 0, "cut off"),
    ],
)
def test_attacks_are_refused(attack, expected, words) -> None:
    refused(attack, expected, words)


def test_an_upper_bound_is_one() -> None:
    stated = frame(raw(b"hello"), descriptor=0x80, fields=(5).to_bytes(4, "little"))
    assert decompress(stated, 9, exact=False) == b"hello"
    refused(stated, 4, "states 5 bytes and not at most 4", exact=False)
    refused(frame(raw(b"hello")), 4, "more than the 4 bytes", exact=False)


def test_every_truncation_of_a_frame_is_refused() -> None:
    data = bytes(range(256)) * 3 + b"tail"
    whole = compress(data)
    for end in range(len(whole)):
        refused(whole[:end], len(data), "cut off|holds|broken")


def test_a_flipped_bit_never_gives_more_than_is_expected_nor_another_error() -> None:
    data = b"the quick brown fox " * 8
    whole = compress(data)
    for position in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        try:
            assert len(decompress(bytes(flipped), len(data))) == len(data)
        except BundleCorrupt:
            continue


@given(st.binary(max_size=200))
def test_any_bytes_behind_the_magic_are_read_or_refused(tail) -> None:
    for descriptor in (b"", b"\0\x50", b"\x20"):
        try:
            decompress(MAGIC + descriptor + tail, 1000, exact=False)
        except BundleCorrupt:
            continue


def test_a_bomb_is_refused_in_bounded_memory() -> None:
    bomb = frame(repeated(b"\0", 128 << 10, last=False) * 16_000 + raw(b""))
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        refused_at = Decompressor(3 << 20, "layer 7")
        with pytest.raises(BundleCorrupt, match="more than"):
            for _ in refused_at.feed(bomb):
                pass
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused_at.produced_bytes == (3 << 20) + 1
    assert peak_bytes < 8 << 20


def test_the_ratio_of_samples() -> None:
    import random

    noise = random.Random(0).randbytes(64 << 10)
    assert estimate_ratio([]) == 1.0
    assert estimate_ratio([b"a" * 65536] * 4) < 0.01
    assert 0.99 < estimate_ratio([noise]) < 1.01
    assert estimate_ratio([noise, noise]) < 0.6


def test_the_library_is_loaded_only_when_it_is_used() -> None:
    script = (
        "import sys, mlbundle.bundle.zstdio; print([m for m in sys.modules if 'zstd' in m and 'io' not in m])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
