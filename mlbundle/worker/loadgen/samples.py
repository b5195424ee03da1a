"""Samples as LoadGen asks for them: loaded where nothing is timed, ready as batches of the size that is queried."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import numpy as np

from mlbundle.worker.errors import WorkerError
from mlbundle.worker.pipeline.build import add_batch_axis
from mlbundle.worker.session import Session

# Pre-processed samples take at most this share of the job's memory.
_POOL_SHARE = 4
# Samples that are tried until one has another answer than the first.
_TRIED = 8


class Samples:
    """The loaded samples; `answer(indices)` runs them as one batch, or one by one where the model takes no batches.

    `window` samples that follow one another in the order of loading are ready as a batch: LoadGen's MultiStream takes
    its queries so. Longer queries are gathered in a buffer that stays bound where the predictor reads it in place.
    """

    def __init__(
        self, session: Session, window: int = 1, tell: Callable[[int], None] = lambda _done: None
    ) -> None:
        self._session = session
        self._window = self.batch = window
        self._tell = tell
        self._predict, self._handle = session.predictor.predict, session.handle
        self._positions: dict[int, int] = {}
        self._pool: dict[str, Any] = {}
        self.ready: dict[int, Any] = {}
        self._members: dict[int, Sequence[int]] = {}
        self._others: dict[Sequence[int], Any] = {}
        self._gather: _Gather | None = None
        self.batches = _takes_batches(session)

    def __len__(self) -> int:
        return len(self._positions)

    def load(self, indices: Sequence[int]) -> None:
        """Pre-process samples, and bind the batches that queries will be made of."""
        self._positions = {}
        for index in indices:
            self._positions.setdefault(index, len(self._positions))
        tensors = []
        for index in self._positions:
            tensors.append(self._session.pipeline.prepare(index))
            self._tell(len(tensors))
        if not self._stackable(tensors):
            self.ready = {
                index: self._session.prepare(add_batch_axis([own]))
                for index, own in zip(self._positions, tensors)
            }
            return
        # LoadGen loads the first samples once more behind the last, so that a query never ends at the edge.
        order = [*self._positions, *indices[len(self._positions) :]]
        self._pool = add_batch_axis([*tensors, *(tensors[self._positions[i]] for i in order[len(tensors) :])])
        size = self._window if self.batches else 1
        for start in range(len(order) - size + 1):
            members = tuple(order[start : start + size])
            if members[0] in self.ready:
                continue
            feeds = {layer: array[start : start + size] for layer, array in self._pool.items()}
            self.ready[members[0]] = self._session.prepare(feeds)
            self._members[members[0]] = members

    def _stackable(self, tensors: Sequence[dict[str, Any]]) -> bool:
        """Return whether samples are of one shape; where they are not, each is a batch of its own."""
        shapes = {tuple((layer, array.shape) for layer, array in own.items()) for own in tensors}
        self.batches = self.batches and len(shapes) == 1
        return len(shapes) == 1

    def unload(self, _indices: Sequence[int]) -> None:
        """Let the samples go."""
        self.ready, self._members, self._others, self._pool, self._gather = {}, {}, {}, {}, None

    def answer_one(self, index: int) -> Any:
        """Return the outputs for one sample that is loaded, where `window` is 1; valid until the next call."""
        return self._predict(self._handle, self.ready[index])

    def answer(self, indices: Sequence[int]) -> Any:
        """Return the outputs for a batch of samples that are loaded; valid until the next call."""
        first = indices[0]
        if not self.batches:
            return self._predict(self._handle, self.ready[first])
        if self._members.get(first) == tuple(indices):
            return self._predict(self._handle, self.ready[first])
        if len(indices) == self._window:
            return self._predict(self._handle, self._other(tuple(indices)))
        return self.gathered(indices)

    def gathered(self, indices: Sequence[int]) -> Any:
        """Return the outputs for samples that are put together now, where the model takes batches.

        Fewer than `batch` are filled up, and more answers come back: in another shape a framework may compute
        otherwise, and a sample would not always have the same answer.
        """
        if not self.batches:
            return self.answer(indices)
        count = len(indices)
        size = max(self.batch, count)
        if self._gather is None or self._gather.size != size:
            self._gather = _Gather(self._session, self._pool, size)
        positions = np.fromiter(map(self._positions.__getitem__, indices), np.intp, count)
        if count < size:
            positions = np.append(positions, [positions[-1]] * (size - count))
        return self._predict(self._handle, self._gather.fill(positions))

    def _other(self, indices: tuple[int, ...]) -> Any:
        """Return a batch that is no window of the loaded order: a compliance test or the end of an accuracy run."""
        if indices not in self._others:
            if len(self._others) > 64:
                self._others.clear()
            self._others[indices] = self._session.prepare(self._take([self._positions[i] for i in indices]))
        return self._others[indices]

    def _take(self, positions: Sequence[int]) -> dict[str, Any]:
        return {layer: array[positions] for layer, array in self._pool.items()}


class _Gather:
    """A bound batch whose memory is filled anew for each query, if the predictor reads it where it lies."""

    def __init__(self, session: Session, pool: dict[str, Any], size: int) -> None:
        self.size = size
        self._session = session
        self._pool = pool
        self._buffers = {
            layer: np.empty((size, *array.shape[1:]), array.dtype) for layer, array in pool.items()
        }
        self._fill([0] * size)
        self._bound = session.prepare(self._buffers)
        self._in_place = self._reads_in_place()

    def fill(self, positions: Any) -> Any:
        """Return a batch of the samples at these positions of the pool."""
        self._fill(positions)
        return self._bound if self._in_place else self._session.prepare(self._buffers)

    def _fill(self, positions: Any) -> None:
        for layer, array in self._pool.items():
            np.take(array, positions, axis=0, out=self._buffers[layer], mode="clip")

    def _reads_in_place(self) -> bool:
        """Return whether a bound batch gives the answer of what is in its memory now, as far as samples show it."""
        if self._bound is self._buffers:
            return True
        first = self._answer(self._bound)
        for position in range(1, min(_TRIED, len(next(iter(self._pool.values()))))):
            self._fill([position] * self.size)
            fresh = self._answer(self._session.prepare({k: v.copy() for k, v in self._buffers.items()}))
            if not _same(fresh, first):
                return _same(fresh, self._answer(self._bound))
        return False

    def _answer(self, batch: Any) -> list[Any]:
        return [np.array(array) for array in self._session.predict(batch)]


def _same(answer: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(answer, other))


def performance_count(session: Session, memory_bytes: int) -> int:
    """Return how many samples may be loaded at once."""
    size_bytes = int(sum(array.nbytes for array in session.pipeline.prepare(0).values()))
    return max(1, min(len(session.dataset), memory_bytes // _POOL_SHARE // max(1, size_bytes)))


def _takes_batches(session: Session) -> bool:
    """Return whether the model answers two samples at once, as two."""
    one = session.pipeline.prepare(0)
    session.prepare(add_batch_axis([one]))
    try:
        with session.blamed():
            answer = session.in_order(session.predict(session.prepare(add_batch_axis([one, one]))))
            return all(np.ndim(array) > 0 and len(array) == 2 for array in answer)
    except WorkerError:
        return False
