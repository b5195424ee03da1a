"""Hashing of streams: whole and by chunk, in threads where the pieces are large (hashlib lets go of the GIL)."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.document import CHUNK_BYTES, chunk_count

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

BLOCK_BYTES = 512 << 10
"""How much is read at a time: it stays in a core's cache until it is hashed and written. Divides the chunk size."""

DEPTH = 8
"""How many blocks of a stream may wait to be hashed: what reads and writes need not keep step with what hashes."""

_THREAD_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class HashResult:
    """Digests in hex; `weak` is the digest by the further algorithm that was asked for."""

    sha256: str
    chunks: tuple[str, ...]
    weak: str | None


class StreamHash:
    """Hashes a stream, whole, and per 64 MiB when it has `size_bytes` for which chunks are recorded (None: always).

    `update` may return before the bytes are hashed: the caller leaves a buffer untouched until `DEPTH` further calls
    of `update`, or `finish`, have returned. Blocks must not cross the border of a chunk.
    """

    def __init__(
        self, size_bytes: int | None, pool: ThreadPoolExecutor | None, weak_algorithm: str | None = None
    ) -> None:
        self._whole = hashlib.sha256()
        self._weak: Any = hashlib.new(weak_algorithm, usedforsecurity=False) if weak_algorithm else None
        self._by_chunk = size_bytes is None or chunk_count(size_bytes) > 0
        self._first_chunk: Any = None
        self._chunks: list[Any] = []
        self._received_bytes = 0
        self._whole_lane, self._weak_lane, self._chunk_lane = (Lane(pool) for _ in range(3))

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes of the stream."""
        size_bytes = len(data)
        if self._by_chunk:
            self._update_chunk(data, size_bytes)
        self._whole_lane.do(partial(self._whole.update, data), size_bytes)
        if self._weak is not None:
            self._weak_lane.do(partial(self._weak.update, data), size_bytes)
        self._received_bytes += size_bytes
        self._wait(DEPTH)

    def finish(self) -> HashResult:
        """Return the digests of the whole stream."""
        self._wait(0)
        if self._by_chunk and self._first_chunk is None and self._received_bytes:
            self._note_first_chunk()
        chunks = [self._first_chunk, *self._chunks] if self._first_chunk is not None else []
        return HashResult(
            self._whole.hexdigest(),
            tuple(chunk.hexdigest() for chunk in chunks),
            self._weak.hexdigest() if self._weak is not None else None,
        )

    def _update_chunk(self, data: bytes | memoryview, size_bytes: int) -> None:
        """Hash what belongs to a chunk; until the first one ends, the hash of the whole is its hash."""
        if self._received_bytes < CHUNK_BYTES or not size_bytes:
            return
        if self._received_bytes == CHUNK_BYTES:
            self._whole_lane.do(self._note_first_chunk, 0)
        if self._received_bytes % CHUNK_BYTES == 0:
            self._chunks.append(hashlib.sha256())
        self._chunk_lane.do(partial(self._chunks[-1].update, data), size_bytes)

    def _note_first_chunk(self) -> None:
        self._first_chunk = self._whole.copy()

    def _wait(self, left: int) -> None:
        for lane in (self._whole_lane, self._weak_lane, self._chunk_lane):
            lane.wait(left)


class Lane:
    """Does jobs in order: in a thread of the pool, or at once where there is none and for small data."""

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        self._pool = pool
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._at_work = False
        self._failure: BaseException | None = None

    def do(self, job: Callable[[], None], size_bytes: int) -> None:
        """Do a job, later perhaps; `size_bytes` says how long it takes."""
        if self._pool is None or (size_bytes < _THREAD_BYTES and not self._at_work):
            job()
            return
        with self._changed:
            self._jobs.append(job)
            idle, self._at_work = not self._at_work, True
        if idle:
            self._pool.submit(self._work)

    def wait(self, left: int = 0) -> None:
        """Wait until at most `left` jobs are not done; raises what one of them raised."""
        if self._at_work:
            with self._changed:
                self._changed.wait_for(lambda: len(self._jobs) <= left)
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        """Work until there is nothing to do, so that no lane keeps a thread from another."""
        while True:
            with self._changed:
                if not self._jobs:
                    self._at_work = False
                    return
                job = self._jobs[0]
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                self._failure = error
            with self._changed:
                self._jobs.popleft()
                self._changed.notify()
