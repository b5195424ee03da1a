"""Answers that come token by token: when the first token of each was there, and how many came.

A predictor that can answer so has `generate(handle, batch)`: an iterator over a batch of one sample. It gives
something whenever a token is there (what, does not matter) and ends with `return outputs`, as `predict` gives them.
"""

from __future__ import annotations

import io
import time
from array import array
from typing import Any, Callable, Iterator

import numpy as np

from mlbundle.wire.passes import FIRST_TOKENS, TOKENS
from mlbundle.worker.emit import Emitter
from mlbundle.worker.errors import WorkerError, bundle_error
from mlbundle.worker.scenarios.base import Timings
from mlbundle.worker.session import Session

Generate = Callable[[Any, Any], Iterator[Any]]

_STEPS = "generate() gives something for each token and ends with `return outputs`, as predict() gives them"


def generates(session: Session) -> bool:
    """Return whether the predictor of a session can answer token by token."""
    return getattr(session.predictor, "generate", None) is not None


class TokenCall:
    """A call in place of `predict`; notes for each answer when its first token was there and how many came."""

    def __init__(self, generate: Generate, handle: Any) -> None:
        self._generate, self._handle = generate, handle
        # On CLOCK_MONOTONIC in ns, and numbers; both of every answer, in order.
        self.first_ns, self.counts = array("q"), array("q")

    def __call__(self, batch: Any) -> Any:
        """Take all tokens of an answer; returns the outputs. Nothing stands between two tokens but the count."""
        clock, tokens, first = time.monotonic_ns, 0, 0
        steps = self._generate(self._handle, batch)
        try:
            next(steps)
            first = clock()
            tokens = 1
            while True:
                next(steps)
                tokens += 1
        except StopIteration as ended:
            outputs = ended.value
        self.first_ns.append(first)
        self.counts.append(tokens)
        return outputs

    def send(self, emitter: Emitter, folder: str, timings: Timings) -> int:
        """Send the tokens of the last queries, which `timings` are of; returns how many tokens they had.

        The time to the first token counts from when a query was due, where it was, else from its start.
        """
        queries = len(timings.starts_ns)
        first, counts = self.first_ns[-queries:], self.counts[-queries:]
        if len(first) != queries or not min(counts):
            raise no_token()
        begins = timings.starts_ns if timings.scheduled_ns is None else timings.scheduled_ns
        times = np.asarray(first, np.int64) - np.asarray(begins, np.int64)
        for name, values in ((FIRST_TOKENS, times), (TOKENS, np.asarray(counts, np.int64))):
            buffer = io.BytesIO()
            np.save(buffer, values, allow_pickle=False)
            emitter.file("{}/{}".format(folder, name), buffer.getvalue())
        return sum(counts)


def token_call(session: Session, batch: Any, *, least: int = 1) -> TokenCall:
    """Return the call for a session, after one answer to a batch of one sample where nothing is timed.

    Raises WorkerError unless that has `least` tokens and is what the manifest says, and for whole numbers (what tokens
    are) what `predict` answers.
    """
    call = TokenCall(session.predictor.generate, session.handle)
    with session.blamed("generate()"):
        answer = call(batch)
    session.answers.check(answer, 1, "generate()")
    # The next call may write over it.
    answer = [np.array(array) for array in answer]
    if call.counts[0] < least:
        raise no_token() if not call.counts[0] else too_few_tokens()
    with session.blamed():
        whole = session.predict(batch)
    for one, other in zip(session.in_order(answer), session.in_order(whole)):
        if one.dtype.kind in "iub" and not np.array_equal(one, other):
            raise bundle_error(
                "answers-differ", "generate() and predict() answer the first sample otherwise", _STEPS
            )
    return TokenCall(session.predictor.generate, session.handle)


def no_token() -> WorkerError:
    """Return the error of an answer that came without a token."""
    return bundle_error("tokens-missing", "generate() ended before it gave a token", _STEPS)


def too_few_tokens() -> WorkerError:
    """Return the error of an answer that LoadGen does not take."""
    return bundle_error(
        "tokens-missing",
        "an answer has one token, and LoadGen takes none of fewer than two",
        "let the model answer longer, or use a scenario that is not LoadGen's",
    )
