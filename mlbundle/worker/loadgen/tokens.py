"""LoadGen's latencies of tokens: it is told when the first token of an answer is there, and how many there were."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from mlbundle.wire.job import Job
from mlbundle.worker.errors import WorkerError
from mlbundle.worker.loadgen.samples import Samples
from mlbundle.worker.loadgen.signs import Signs
from mlbundle.worker.loadgen.sut import Payloads
from mlbundle.worker.pipeline.build import add_batch_axis
from mlbundle.worker.session import Session
from mlbundle.worker.tokens import generates, token_call, too_few_tokens

# The fewest tokens of an answer that LoadGen takes.
_LEAST_TOKENS = 2
_LIMITS = {"ttft_latency_s": "ttft_latency", "tpot_latency_s": "tpot_latency"}


def wants_tokens(job: Job, session: Session) -> bool:
    """Return whether a test measures tokens: the model generates, and nobody set a limit for whole answers.

    With latencies of tokens LoadGen looks at no others. Raises WorkerError for limits that have no tokens.
    """
    options = job.scenario.get("options") or {}
    if generates(session):
        return options.get("target_latency_s") is None
    if any(options.get(key) is not None for key in _LIMITS):
        raise WorkerError(
            "scenario-options-refused",
            "there are limits for tokens, and the predictor has no generate(): its answers come whole",
            fault="environment",
            hint="--target-latency, a limit for whole answers",
        )
    return False


def set_up(settings: Any, job: Job) -> None:
    """Put latencies of tokens into LoadGen's settings; limits that nobody chose stay LoadGen's own."""
    options = job.scenario.get("options") or {}
    settings.use_token_latencies = True
    for key, name in _LIMITS.items():
        if options.get(key) is not None:
            setattr(settings, name, round(options[key] * 1e9))


class TokenSamples(Samples):
    """Samples of a model that generates: each is a batch of its own, and answered token by token."""

    def __init__(
        self, session: Session, window: int = 1, tell: Callable[[int], None] = lambda _done: None
    ) -> None:
        super().__init__(session, window, tell)
        self.batches = False
        batch = session.prepare(add_batch_axis([session.pipeline.prepare(0)]))
        call = token_call(session, batch, least=_LEAST_TOKENS)
        self._predict = lambda _handle, batch: call(batch)


class Answers:
    """Answers to LoadGen's queries, token by token: one sample after the other, however many a query has."""

    def __init__(
        self, session: Session, samples: Samples, signs: Signs, payloads: Payloads | None = None
    ) -> None:
        self._generate, self._handle = session.predictor.generate, session.handle
        self._samples, self._signs, self._payloads = samples, signs, payloads

    def callback(self, loadgen: Any) -> Callable[[Sequence[int], Sequence[int]], None]:
        """Return what answers queries, and tells LoadGen of first tokens and of whole answers."""
        complete, first_there = loadgen.QuerySamplesComplete, loadgen.FirstTokenComplete
        response, generate, handle = loadgen.QuerySampleResponse, self._generate, self._handle
        samples, payloads, done = self._samples, self._payloads, self._signs.done

        def run(ids: Sequence[int], indices: Sequence[int]) -> None:
            for query, index in zip(ids, indices):
                first = [response(query, 0, 0)]
                tokens, steps = 0, generate(handle, samples.ready[index])
                try:
                    next(steps)
                    first_there(first)
                    tokens = 1
                    while True:
                        next(steps)
                        tokens += 1
                except StopIteration as ended:
                    answer = ended.value
                if tokens < _LEAST_TOKENS:
                    raise too_few_tokens()
                place = size = 0
                if payloads is not None:
                    # What is held must live until LoadGen has been told.
                    _output, place, size, _held = payloads.one(answer, index)
                complete([response(query, place, size, tokens)])
                done(1)

        return run
