"""The digests of streams do not depend on threads, on the sizes of blocks, or on when a buffer is used again."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlbundle.bundle.document import CHUNK_BYTES
from mlbundle.bundle.hashing import DEPTH, HashResult, Lane, StreamHash
from mlbundle.bundle.writeback import STEP_BYTES, WriteBack

BLOCK = 1 << 20
NOISE = os.urandom(7 * BLOCK)


def blocks_of(size_bytes: int) -> list[memoryview]:
    starts = range(0, size_bytes, BLOCK)
    return [memoryview(NOISE)[i % 7 * BLOCK :][: min(BLOCK, size_bytes - at)] for i, at in enumerate(starts)]


def expected(size_bytes: int, *, by_chunk: bool, weak: str | None) -> HashResult:
    data = b"".join(blocks_of(size_bytes))
    pieces = [data[at : at + CHUNK_BYTES] for at in range(0, size_bytes, CHUNK_BYTES)] if by_chunk else []
    return HashResult(
        hashlib.sha256(data).hexdigest(),
        tuple(hashlib.sha256(piece).hexdigest() for piece in pieces),
        hashlib.new(weak, data).hexdigest() if weak else None,
    )


@pytest.mark.parametrize(
    ("size_bytes", "stated", "by_chunk", "weak"),
    [
        (0, 0, False, None),
        (0, None, True, None),
        (3 * BLOCK + 5, 3 * BLOCK + 5, False, "md5"),
        (3 * BLOCK + 5, None, True, None),
        (CHUNK_BYTES, CHUNK_BYTES, False, None),
        (CHUNK_BYTES, None, True, None),
        (CHUNK_BYTES + 1, CHUNK_BYTES + 1, True, "sha1"),
        (2 * CHUNK_BYTES, 2 * CHUNK_BYTES, True, None),
        (2 * CHUNK_BYTES + BLOCK + 9, None, True, "md5"),
    ],
)
@pytest.mark.parametrize("threads", [0, 2])
def test_digests_are_those_of_the_bytes(
    size_bytes: int, stated: int | None, by_chunk: bool, weak: str | None, threads: int
) -> None:
    with ThreadPoolExecutor(threads or 1) as pool:
        stream = StreamHash(stated, pool if threads else None, weak)
        buffers = [bytearray(BLOCK) for _ in range(DEPTH + 1)]
        for turn, block in enumerate(blocks_of(size_bytes)):
            view = memoryview(buffers[turn % len(buffers)])[: len(block)]
            view[:] = block
            stream.update(view)
        assert stream.finish() == expected(size_bytes, by_chunk=by_chunk, weak=weak)


def test_small_and_large_pieces_keep_their_order() -> None:
    pieces = [NOISE[:BLOCK], b"a", b"", NOISE[:3], NOISE[BLOCK : 3 * BLOCK], b"z"] * 5
    with ThreadPoolExecutor(2) as pool:
        stream = StreamHash(0, pool)
        for piece in pieces:
            stream.update(piece)
        assert stream.finish().sha256 == hashlib.sha256(b"".join(pieces)).hexdigest()


def test_what_fails_in_a_lane_fails_where_one_waits() -> None:
    def fail() -> None:
        raise MemoryError("no room")

    with ThreadPoolExecutor(1) as pool:
        lane = Lane(pool)
        lane.do(fail, 1 << 30)
        with pytest.raises(MemoryError, match="no room"):
            lane.wait()


def test_writing_back_early_changes_no_byte_and_never_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    follower = WriteBack(descriptor)
    for turn in range(2 * STEP_BYTES // BLOCK + 3):
        os.pwrite(descriptor, NOISE[:BLOCK], turn * BLOCK)
        follower.reached((turn + 1) * BLOCK)
    os.close(descriptor)
    follower.reached(1 << 40)
    assert path.read_bytes() == NOISE[:BLOCK] * (2 * STEP_BYTES // BLOCK + 3)
