"""Hashing of streams: whole and by chunk, in threads where the pieces are large (hashlib lets go of the GIL)."""

from __future__ import annotations

import hashlib
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.document import CHUNK_BYTES, chunk_count

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

BLOCK_BYTES = 4 << 20
"""How much is read at a time; divides the chunk size."""

_THREAD_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class HashResult:
    """Digests in hex; `weak` is the digest by the further algorithm that was asked for."""

    sha256: str
    chunks: tuple[str, ...]
    weak: str | None


class StreamHash:
    """Hashes a stream, whole, and per 64 MiB when it has `size_bytes` for which chunks are recorded (None: always).

    `update` may return before the bytes are hashed: the caller leaves a buffer untouched until the next call
    of `update` or `finish` has returned. Blocks must not cross the border of a chunk.
    """

    def __init__(
        self, size_bytes: int | None, pool: ThreadPoolExecutor | None, weak_algorithm: str | None = None
    ) -> None:
        self._pool = pool
        self._whole = hashlib.sha256()
        self._weak: Any = hashlib.new(weak_algorithm, usedforsecurity=False) if weak_algorithm else None
        self._chunk: Any = hashlib.sha256() if size_bytes is None or chunk_count(size_bytes) else None
        self._chunk_bytes = 0
        self._chunks: list[str] = []
        self._pending: list[Future[None]] = []

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes of the stream."""
        self._wait()
        targets = [target for target in (self._whole, self._weak, self._chunk) if target is not None]
        if self._pool is not None and len(data) >= _THREAD_BYTES:
            self._pending = [self._pool.submit(target.update, data) for target in targets]
        else:
            for target in targets:
                target.update(data)
        self._chunk_bytes += len(data)

    def finish(self) -> HashResult:
        """Return the digests of the whole stream."""
        self._wait()
        if self._chunk is not None and self._chunk_bytes:
            self._chunks.append(self._chunk.hexdigest())
        weak = self._weak.hexdigest() if self._weak is not None else None
        return HashResult(self._whole.hexdigest(), tuple(self._chunks), weak)

    def _wait(self) -> None:
        if self._pending:
            wait(self._pending)
            self._pending = []
        if self._chunk is not None and self._chunk_bytes == CHUNK_BYTES:
            self._chunks.append(self._chunk.hexdigest())
            self._chunk, self._chunk_bytes = hashlib.sha256(), 0
