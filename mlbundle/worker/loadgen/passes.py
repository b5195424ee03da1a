"""A LoadGen test as a pass: `loadgen:performance`, `loadgen:accuracy`, `loadgen:TEST01`, `loadgen:TEST04`."""

from __future__ import annotations

import io
import json
import mmap
import os
import sys
import traceback
from dataclasses import asdict, replace
from typing import Any, Callable, NoReturn, Sequence

import numpy as np

from mlbundle.wire import events
from mlbundle.wire.job import Job
from mlbundle.wire.passes import LOADGEN_FILES, OUTPUTS, PEAK_KINDS
from mlbundle.worker.emit import Emitter
from mlbundle.worker.errors import EXIT_OF_FAULT, WorkerError
from mlbundle.worker.loadgen import accuracy, peak, tokens
from mlbundle.worker.loadgen.compliance import TESTS, audit_config
from mlbundle.worker.loadgen.issue import THREAD, choose_issue
from mlbundle.worker.loadgen.library import load_loadgen
from mlbundle.worker.loadgen.pilot import run_offline_pilot, run_pilot
from mlbundle.worker.loadgen.samples import Samples, performance_count
from mlbundle.worker.loadgen.signs import BUSY_RATE_PER_S, Signs, WaitingSigns
from mlbundle.worker.loadgen.sut import Payloads, SystemUnderTest
from mlbundle.worker.loadgen.wanted import (
    Hints,
    Pilot,
    expected_s,
    hints_of,
    memory_limit_bytes,
    require_memory,
    require_samples,
    server_rate,
    wanted_of,
    within_reach,
)
from mlbundle.worker.memory import as_shortage, in_words
from mlbundle.worker.passes import OUTPUT_BYTES, SampleProgress, peak_memory_bytes
from mlbundle.worker.pipeline.build import add_batch_axis
from mlbundle.worker.scenarios.loop import loop_overhead_ns, quiet_interpreter
from mlbundle.worker.scenarios.overload import overload
from mlbundle.worker.session import Session

# A quarter of what the test takes, and no more.
PILOT_SHARE, LEAST_PILOT_S, MOST_PILOT_S = 0.25, 0.3, 3.0
# The pilot of the performance test, for the compliance tests: they must run with the same settings.
_PILOT_FILE = "loadgen-pilot.json"
# In hex, and a line around it.
_LOGGED_BYTES_A_BYTE, _LOGGED_BYTES_A_SAMPLE = 2, 64


def run(job: Job, emitter: Emitter, name: str) -> None:
    """Run one test and send its logs and its result. Raises WorkerError, or ends the process where a query fails."""
    _Test(job, emitter, name).run()


class _Test:
    def __init__(self, job: Job, emitter: Emitter, name: str) -> None:
        self._job, self._emitter, self._name = job, emitter, name
        # A performance test after a search for the peak may come several times.
        self._kind, _, attempt = name.partition(":")[2].partition(":")
        self._attempt = int(attempt or 0)
        self._options = job.scenario.get("options") or {}
        self._searches = self._kind in PEAK_KINDS
        self._peak: peak.Peak | None = None
        self._folder = os.path.join(job.paths["scratch"], "loadgen", self._kind)

    def run(self) -> None:
        """Load, pilot, test, send; nothing where an earlier test has found the peak, or confirmed it."""
        if self._options.get("find_peak"):
            self._peak = peak.Peak.load(self._job.paths["scratch"])
            if self._is_over():
                return
        self._emitter.phase("load", "begun")
        loadgen = load_loadgen()
        self._session = Session(self._job)
        self._wanted = wanted_of(self._job, len(self._session.dataset))
        if self._peak is not None and not self._searches:
            self._wanted = replace(self._wanted, rate_per_s=self._peak.rate_per_s)
        self._by_token = tokens.wants_tokens(self._job, self._session)
        self._count = performance_count(self._session, self._job.limits.memory_bytes)
        require_samples(self._wanted, self._count, len(self._session.dataset))
        # More than are there: the last is told as the others are, and there is no other end.
        progress = SampleProgress(self._emitter, "load", self._count + 1)
        samples = tokens.TokenSamples if self._by_token else Samples
        self._samples = samples(self._session, self._window(), progress.tell)
        self._emitter.phase("load", "done")
        pilot, hints = self._expect()
        if self._searches:
            rate = peak.first_rate(self._peak, self._options, hints.rate_per_s)
            self._wanted, hints = (
                peak.trial_of(self._wanted, rate, self._options),
                replace(hints, rate_per_s=rate),
            )
        sut = self._run_test(loadgen, pilot, hints)
        if self._searches:
            found = peak.found_in(self._folder, hints.rate_per_s, self._options)
            found.save(self._job.paths["scratch"])
            self._send_logs()
        elif self._has_last_word():
            self._send(pilot, hints, sut)
        self._session.close()

    def _is_over(self) -> bool:
        """Return whether there is nothing left to do for a search, or for a test of what it found."""
        if self._peak is None:
            return False
        return self._peak.searched if self._searches else self._kind == "performance" and self._peak.settled

    def _has_last_word(self) -> bool:
        """Return whether a test is the result; a peak that it does not confirm is left to the next one, lowered."""
        if self._peak is None or self._kind != "performance":
            return True
        after = self._peak.after(valid=peak.was_valid(self._folder), attempt=self._attempt)
        after.save(self._job.paths["scratch"])
        if after.settled:
            return True
        self._send_logs("unconfirmed-{}".format(self._attempt))
        return False

    def _window(self) -> int:
        return self._wanted.samples_per_query if self._wanted.scenario == "MultiStream" else 1

    def _expect(self) -> tuple[Pilot, Hints]:
        """Return what LoadGen is to expect; raises WorkerError where that takes too much memory."""
        pilot = self._pilot()
        self._wanted = within_reach(self._wanted, pilot)
        used_bytes = peak_memory_bytes()
        limit_bytes = memory_limit_bytes(self._job, used_bytes)
        hints = hints_of(self._wanted, pilot, max(0, limit_bytes - used_bytes))
        if self._kind == "accuracy":
            self._require_log_space()
        else:
            require_memory(self._wanted, hints, limit_bytes, used_bytes)
            self._warn_of_overload(pilot, hints)
        return pilot, hints

    def _warn_of_overload(self, pilot: Pilot, hints: Hints) -> None:
        most_per_s = 1e9 / pilot.mean_ns
        if self._wanted.scenario == "Server" and hints.rate_per_s > most_per_s and not self._searches:
            self._emitter.event(overload(hints.rate_per_s, most_per_s, expected_s(self._wanted, hints)))

    def _pilot(self) -> Pilot:
        path = os.path.join(self._job.paths["scratch"], _PILOT_FILE)
        if self._kind != "performance" and not self._searches:
            with open(path, encoding="utf-8") as stream:
                return Pilot.from_document(json.load(stream))
        self._emitter.phase("warm-up", "begun")
        pilot = self._measure_pilot()
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(asdict(pilot), stream)
        self._emitter.phase("warm-up", "done")
        return pilot

    def _measure_pilot(self) -> Pilot:
        most_s = min(MOST_PILOT_S, max(LEAST_PILOT_S, PILOT_SHARE * self._wanted.min_duration_s))
        window = self._window()
        indices = list(range(min(self._count, 64 + window)))
        self._samples.load(indices)
        queries: list[Any] = [indices[start : start + window] for start in range(len(indices) - window + 1)]
        signs = Signs(self._emitter, "warm-up", most_s, "s")
        signs.begin()
        with self._session.blamed(), quiet_interpreter():
            if self._wanted.scenario == "Offline":
                found = run_offline_pilot(self._samples, indices, most_s, lambda: signs.done(1))
            elif window == 1:
                found = run_pilot(self._samples.answer_one, indices, most_s, lambda: signs.done(1))
                if self._wanted.scenario == "Server":
                    found = replace(found, issue=self._choose_issue(found, indices, most_s, signs))
            else:
                found = run_pilot(self._call_of_batch(), queries, most_s, lambda: signs.done(1))
        self._samples.unload(indices)
        return found

    def _choose_issue(self, pilot: Pilot, indices: Sequence[int], most_s: float, signs: Signs) -> str:
        wanted, answer = self._wanted, self._samples.answer_one
        return wanted.issue or choose_issue(
            answer,
            indices,
            server_rate(wanted, pilot),
            pilot.mean_ns,
            most_s=most_s,
            tell=lambda: signs.done(1),
        )

    def _call_of_batch(self) -> Callable[[Sequence[int]], Any]:
        if self._samples.batches:
            return self._samples.answer
        one = self._samples.answer_one

        def each(indices: Sequence[int]) -> None:
            for index in indices:
                one(index)

        return each

    def _require_log_space(self) -> None:
        """Raise WorkerError where LoadGen's log of all answers would be more than may come back."""
        samples = len(self._session.dataset)
        with self._session.blamed():
            answer = self._session.predict(self._one_batch())
        sample_bytes = sum(np.asarray(array).nbytes for array in self._session.in_order(answer))
        log_bytes = samples * (_LOGGED_BYTES_A_BYTE * sample_bytes + _LOGGED_BYTES_A_SAMPLE)
        if log_bytes > self._job.limits.out_bytes // 2:
            raise WorkerError(
                "loadgen-log-size",
                "LoadGen would log {} of answers, the limit for all files is {}".format(
                    in_words(log_bytes), in_words(self._job.limits.out_bytes)
                ),
                fault="environment",
                hint="raise the settings out_bytes and scratch_bytes, or run with --no-accuracy",
            )

    def _one_batch(self) -> Any:
        return self._session.prepare(add_batch_axis([self._session.pipeline.prepare(0)]))

    def _run_test(self, loadgen: Any, pilot: Pilot, hints: Hints) -> SystemUnderTest:
        phase = "accuracy" if self._kind == "accuracy" else "warm-up" if self._searches else "measure"
        os.makedirs(self._folder, exist_ok=True)
        total = float(len(self._session.dataset)) if phase == "accuracy" else expected_s(self._wanted, hints)
        signs = Signs(self._emitter, phase, total, "samples" if phase == "accuracy" else "s")
        self._payloads = None
        if self._kind in ("accuracy", "TEST01"):
            self._payloads = Payloads(self._session, keep_layouts=self._kind == "accuracy")
        sut = SystemUnderTest(loadgen, self._samples, signs, self._fail, self._payloads)
        settings = self._settings(loadgen, hints)
        self._emitter.phase(phase, "begun")
        if self._by_token:
            answers = tokens.Answers(self._session, self._samples, signs, self._payloads)
            issue = self._aside(sut, sut.guarded(answers.callback(loadgen)), pilot)
        else:
            issue = self._issue(sut, pilot)
        waiting = None
        if self._wanted.scenario == "Server" and hints.rate_per_s < BUSY_RATE_PER_S:
            waiting = WaitingSigns(signs)
            issue = waiting.watching(issue)
        with quiet_interpreter():
            if self._searches:
                self._start(loadgen, settings, issue, peak.end_of_trial(self._fail))
                sut.flush()
            else:
                self._start(loadgen, settings, issue, sut.flush)
            sut.finish()
        if waiting is not None:
            waiting.stop()
        self._emitter.phase(phase, "done")
        return sut

    def _issue(self, sut: SystemUnderTest, pilot: Pilot) -> Callable[..., None]:
        if self._wanted.scenario == "Offline":
            return sut.chunks(pilot.batch)
        if self._wanted.scenario == "MultiStream":
            return sut.batches()
        return self._aside(sut, sut.single(), pilot)

    def _aside(self, sut: SystemUnderTest, issue: Callable[..., None], pilot: Pilot) -> Callable[..., None]:
        return sut.aside(issue) if pilot.issue == THREAD else issue

    def _settings(self, loadgen: Any, hints: Hints) -> Any:
        """Return the settings of the test: MLCommons' embedded configuration, then what is wanted and expected."""
        wanted, settings = self._wanted, loadgen.TestSettings()
        # There is no such file: 0 asks for the configuration that is part of LoadGen.
        settings.FromConfig(os.path.join(self._folder, "none"), "none", wanted.scenario, 0)
        settings.scenario = getattr(loadgen.TestScenario, wanted.scenario)
        accuracy_mode = self._kind == "accuracy"
        settings.mode = loadgen.TestMode.AccuracyOnly if accuracy_mode else loadgen.TestMode.PerformanceOnly
        settings.min_duration_ms = round(wanted.min_duration_s * 1000)
        if wanted.min_queries is not None:
            settings.min_query_count = wanted.min_queries
        settings.single_stream_expected_latency_ns = hints.expected_ns
        settings.multi_stream_expected_latency_ns = hints.expected_ns
        settings.multi_stream_samples_per_query = wanted.samples_per_query
        settings.server_target_qps = hints.rate_per_s
        settings.offline_expected_qps = hints.rate_per_s
        if wanted.target_latency_s is not None:
            settings.server_target_latency_ns = round(wanted.target_latency_s * 1e9)
        if self._by_token:
            tokens.set_up(settings, self._job)
        if self._searches:
            peak.set_up(loadgen, settings, hints.rate_per_s)
        return settings

    def _start(
        self, loadgen: Any, settings: Any, issue: Callable[..., None], flush: Callable[[], None]
    ) -> None:
        log = loadgen.LogSettings()
        log.enable_trace = False
        log.log_output.outdir = self._folder
        log.log_output.copy_summary_to_stdout = False
        sut = loadgen.ConstructFastSUT(issue, flush)
        library = loadgen.ConstructQSL(
            len(self._session.dataset), self._count, self._guarded(self._samples.load), self._samples.unload
        )
        loadgen.StartTestWithLogSettings(sut, library, settings, log, self._audit())
        loadgen.DestroyQSL(library)
        loadgen.DestroyFastSUT(sut)

    def _audit(self) -> str:
        """Return the path of the settings that override ours: for a compliance test, else of a file that is not there.

        Without it LoadGen would take an `audit.config` of the working folder.
        """
        if self._kind not in TESTS:
            return os.path.join(self._folder, "none")
        path = os.path.join(self._folder, "audit.config")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(audit_config(self._kind, self._count))
        return path

    def _guarded(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def guarded(value: Any) -> None:
            try:
                call(value)
            except BaseException as error:  # noqa: BLE001 - LoadGen aborts the process on any
                self._fail(error)

        return guarded

    def _fail(self, error: BaseException) -> NoReturn:
        """Report an error inside a callback and end the process: LoadGen can't be told to stop."""
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
        sys.stderr.flush()
        status = EXIT_OF_FAULT["environment"]
        try:
            found = self._blamed(error)
            self._send_logs()
            self._emitter.event(
                events.Failed(
                    reference=found.reference, message=found.message, hint=found.hint, fault=found.fault
                )
            )
            status = found.exit_status
        finally:
            os._exit(status)

    def _blamed(self, error: BaseException) -> WorkerError:
        found = error
        try:
            with self._session.blamed():
                raise error
        except WorkerError as known:
            found = known
        except BaseException as other:  # noqa: BLE001 - it is told, whatever it is
            found = other
        shortage = as_shortage(found, self._name, self._job) if isinstance(found, Exception) else None
        if shortage is not None:
            return shortage  # type: ignore[no-any-return]
        if isinstance(found, WorkerError):
            return found
        return WorkerError(
            "predictor-failed", "{}: {}".format(type(found).__name__, found), fault="framework"
        )

    def _send(self, pilot: Pilot, hints: Hints, sut: SystemUnderTest) -> None:
        self._send_logs()
        values: dict[str, Any] = {
            "pilot": asdict(pilot),
            "expected_ns": hints.expected_ns,
            "predicted_memory_bytes": hints.memory_bytes,
            "busy_ns": max(0, sut.ended_ns - sut.begun_ns),
            "loop_overhead_ns": loop_overhead_ns(),
            "loaded_samples": self._count,
            "peak_memory_bytes": peak_memory_bytes(),
            "framework": self._session.facts,
        }
        if self._kind == "accuracy" and self._job.accuracy is not None:
            assert self._payloads is not None
            path = os.path.join(self._folder, "mlperf_log_accuracy.json")
            logged = accuracy.read_log(path, most_again=self._window() - 1)
            found, arrays = accuracy.count(self._job, self._session, logged, self._payloads.layouts)
            values.update(found)
            self._send_outputs(arrays)
        self._emitter.event(events.Result(pass_kind=self._name, values=values))

    def _send_outputs(self, arrays: dict[str, Any]) -> None:
        if sum(array.nbytes for array in arrays.values()) > OUTPUT_BYTES:
            arrays = {"predictions": arrays["predictions"]}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        self._emitter.file(OUTPUTS, buffer.getvalue())

    def _send_logs(self, kind: str | None = None) -> None:
        """Send LoadGen's files as they are; one that is empty says nothing."""
        for file_name in LOADGEN_FILES:
            path = os.path.join(self._folder, file_name)
            if not os.path.exists(path) or not os.path.getsize(path):
                continue
            with (
                open(path, "rb") as stream,
                mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
                memoryview(content) as view,
            ):
                self._emitter.file("loadgen/{}/{}".format(kind or self._kind, file_name), view)
