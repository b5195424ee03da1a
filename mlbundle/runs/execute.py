"""Runs a plan: a generator of typed events; the run's folder and record are complete when it ends.

However it ends — completed, failed, cancelled — the worker is gone, the record is written and the index knows it.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from mlbundle.analysis.claims import check_accuracy, validity_reasons
from mlbundle.errors import EnvironmentLacks, MlbundleError, ProtocolBroken, StorageFailed, internal_error
from mlbundle.manifest.framework import distribution_names
from mlbundle.manifest.versions import VersionConstraint
from mlbundle.runs.collect import Timeline, clock_offset_ns, trace_attributes, write_trace
from mlbundle.runs.environment import Surroundings
from mlbundle.runs.folder import JOB, WORKER_LOG, RunFolder, read_record
from mlbundle.runs.leftovers import note_left_container
from mlbundle.runs.measured import read_accuracy
from mlbundle.runs.partial_trace import write_partial_trace
from mlbundle.runs.profiles import profiles_document, read_profiles
from mlbundle.runs.queue import MACHINE_BUSY, MachineLock
from mlbundle.runs.record import Findings, build_record
from mlbundle.runs.results import collect_results
from mlbundle.runs.sampled import SAMPLES, Sampling, resources, sample_columns, save_samples
from mlbundle.runs.seen import events_of, passes_of_folder, seen_of
from mlbundle.runtime.conversation import Watch, converse
from mlbundle.store.database import DATABASE, RunDatabase
from mlbundle.wire.clocks import clock_snapshot
from mlbundle.wire.events import End, Event, Failed, Hello, Log, Phase, Result, Warned, Window
from mlbundle.wire.passes import passes_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from mlbundle.config import Settings
    from mlbundle.runs.plan import RunPlan
    from mlbundle.runs.quiet import Notice
    from mlbundle.runtime.base import Launch
    from mlbundle.wire.job import Job


class Execution:
    """One run: iterate over `events()`, then look at `record`."""

    def __init__(self, plan: RunPlan, settings: Settings) -> None:
        self._plan = plan
        self._settings = settings
        self._findings = Findings()
        self._phases = _PhaseClock(plan.phases)
        self._windows: list[Window] = []
        self._results: dict[str, Result] = {}
        self._clocks = (clock_snapshot(), clock_snapshot())
        self._sampling = Sampling(
            gpus=plan.options.accelerator == "gpu", perf=plan.options.trace_level in _COUNTED_LEVELS
        )
        self._index_error: StorageFailed | None = None
        self.record: dict[str, Any] | None = None

    def events(self) -> Generator[Event]:
        """Run, and yield every event as it is written down.

        Raises what went wrong (RunFailed, EnvironmentLacks, IntegrityError) after the record is written.
        """
        with RunFolder(self._settings.runs_dir, self._plan.run_id) as folder:
            try:
                yield from self._queue_and_run(folder)
            except Exception as error:
                failure = error if isinstance(error, MlbundleError) else internal_error(error)
                if self._keep_completed(folder):
                    raise failure from error
                self._findings.error = failure.to_document()
                self._finish(folder, "failed")
                yield folder.append(_failed_event(failure), source="host")
                yield folder.append(End(status="failed", clocks=clock_snapshot()), source="host")
                raise failure from error
            except BaseException:
                # Ctrl-C, SIGTERM, or a consumer that lost interest: there is no one left to yield to.
                if self._keep_completed(folder):
                    raise
                self._finish(folder, "cancelled")
                folder.append(End(status="cancelled", clocks=clock_snapshot()), source="host")
                raise
            if self._index_error is not None:
                yield folder.append(
                    Warned(
                        reference=self._index_error.reference,
                        message=f"the run is kept in its folder and not in the index: {self._index_error.message}",
                        hint=self._index_error.hint,
                    ),
                    source="host",
                )
            yield folder.append(End(status="completed", clocks=clock_snapshot()), source="host")

    def _queue_and_run(self, folder: RunFolder) -> Iterator[Event]:
        plan = self._plan
        launch = plan.launch(folder.path / WORKER_LOG)
        job = plan.job(launch)
        folder.write_job(job)  # while it waits, it can be seen what for
        yield folder.append(Log(message=f"{plan.model.name}:{plan.model.version}"), source="host")
        yield from self._unchecked_claims(folder)
        for name, start_ns, end_ns in plan.phases:
            yield folder.append(Phase(name=name, state="begun", t_ns=start_ns), source="host")
            yield folder.append(Phase(name=name, state="done", t_ns=end_ns), source="host")
        with closing(MachineLock(self._plan.run_id)) as lock:
            if not lock.available:
                message = "no lock file can be made here: others may measure at the same time"
                yield folder.append(Warned(reference="machine-not-locked", message=message), source="host")
            if not plan.options.concurrent:
                yield from self._queue(folder, lock)
            self._clocks = (clock_snapshot(), self._clocks[1])
            surroundings = self._findings.surroundings = Surroundings(plan)
            yield from self._notices(folder, surroundings.before())
            yield from self._run_worker(folder, launch, job)
            yield from self._notices(folder, surroundings.after())
        yield from self._phase(folder, "collect", "begun")
        self._collect(folder, job)
        yield from self._phase(folder, "collect", "done")
        yield from self._phase(folder, "verify", "begun")
        self._verify(job)
        yield from self._phase(folder, "verify", "done")
        self._finish(folder, "completed")

    def _notices(self, folder: RunFolder, notices: list[Notice]) -> Iterator[Event]:
        for notice in notices:
            yield folder.append(notice.to_event(), source="host")

    def _unchecked_claims(self, folder: RunFolder) -> Iterator[Event]:
        expected = self._plan.model.expected
        claims = (
            {"outputs": expected.outputs, "performance": expected.performance} if expected is not None else {}
        )
        for name, claim in claims.items():
            if claim:
                message = f"the claim under /expected/{name} is not checked by this version"
                yield folder.append(Warned(reference="claim-not-checked", message=message), source="host")

    def _queue(self, folder: RunFolder, lock: MachineLock) -> Iterator[Event]:
        if not lock.acquire():
            holder = lock.holder()
            who = f": {holder}" if holder is not None else ""
            message = f"waiting for another measurement on this machine to end{who}"
            hint = "with --concurrent it would not wait, and the result would be marked"
            yield folder.append(Warned(reference=MACHINE_BUSY, message=message, hint=hint), source="host")
            lock.wait()

    def _run_worker(self, folder: RunFolder, launch: Launch, job: Job) -> Iterator[Event]:
        plan = self._plan
        yield from self._phase(folder, "create", "begun")
        connection = plan.runtime.start(launch)
        # The sampler ends before the worker is killed.
        with closing(_Stopping(connection)), closing(self._sampling):
            self._sampling.begin(connection)
            yield from self._phase(folder, "create", "done")
            yield from self._phase(folder, "start", "begun")
            watch = Watch(
                start_timeout_s=self._settings.start_timeout_s,
                hang_timeout_s=plan.options.hang_timeout_s,
                out_bytes=plan.limits.out_bytes,
                scratch_bytes=plan.limits.scratch_bytes,
            )
            with closing(converse(connection, job, folder.path, watch)) as conversation:
                for event in conversation:
                    yield from self._take(folder, event)
                    for counter in self._sampling.events():
                        yield folder.append(counter, source="host")

    def _take(self, folder: RunFolder, event: Event) -> Iterator[Event]:
        if isinstance(event, Failed | End):
            return  # the host says both in its own words, once
        if isinstance(event, Hello):
            self._findings.hello = event
            self._findings.clock_offset_ns = clock_offset_ns(event.clocks, clock_snapshot())
        event = dataclasses.replace(event, t_ns=event.t_ns - self._findings.clock_offset_ns)
        yield folder.append(event, source="worker")
        if isinstance(event, Hello):
            self._check_framework(event)
            yield from self._phase(folder, "start", "done")
        elif isinstance(event, Phase):
            self._phases.take(event)
        elif isinstance(event, Window):
            self._windows.append(event)
        elif isinstance(event, Result):
            self._results[event.pass_kind] = event

    def _check_framework(self, hello: Hello) -> None:
        """Refuse an environment whose framework is not one that the manifest allows (a foreign `--python`)."""
        distributions = hello.facts["distributions"]
        for name in distribution_names(self._plan.model.framework.name):
            if name in distributions:
                self._require_version(distributions[name])
                return

    def _require_version(self, found: str) -> None:
        wanted = self._plan.model.framework
        if not VersionConstraint.parse(wanted.version).allows(found):
            raise EnvironmentLacks(
                f"the worker has {wanted.name} {found}, the manifest wants {wanted.version}",
                where="/framework/version",
                hint="leave out --python, or install a version that fits",
            )

    def _phase(self, folder: RunFolder, name: str, state: str) -> Iterator[Event]:
        event = folder.append(Phase(name=name, state=state, t_ns=time.monotonic_ns()), source="host")
        assert isinstance(event, Phase)
        self._phases.take(event)
        yield event

    def _collect(self, folder: RunFolder, job: Job) -> None:
        options, findings = self._plan.options, self._findings
        found = collect_results(folder.path, self._results, options.scenario, options.scenario_options or {})
        findings.result, findings.framework = found.result, found.framework
        findings.resources = {"worker_peak_memory_bytes": found.peak_memory_bytes}
        findings.validity_reasons = validity_reasons(
            queries=found.queries,
            # A warm-up of a length that the user chose is the user's to judge; the record says whether it settled.
            settled=found.settled or self._warm_up_chosen(),
            concurrent=self._plan.options.concurrent,
            emulated=self._plan.architecture if self._plan.emulated else None,
        )
        findings.validity_reasons += found.reasons
        _judge_submission(findings)
        self._clocks = (self._clocks[0], clock_snapshot())
        if self._plan.options.trace_level != "none":
            profiles = read_profiles(folder.path, self._results)
            findings.profiles = profiles_document(passes_of(job), profiles, events_of(folder.path))
            timeline = Timeline(
                self._phases.spans(),
                self._windows,
                self._clocks,
                found.traced_queries,
                profiles,
                sample_columns(self._sampling.end()),
            )
            write_trace(folder.path, self._plan, findings, timeline)
        findings.passes = passes_of_folder(folder.path, found.headline)
        findings.files |= {name: file for name, file in _FILES.items() if (folder.path / file).is_file()}

    def _warm_up_chosen(self) -> bool:
        return bool((self._plan.options.scenario_options or {}).get("warmup", "auto") != "auto")

    def _verify(self, job: Job) -> None:
        if job.accuracy is None:
            return
        # LoadGen's accuracy mode says it in the words of our own pass.
        said = self._results.get("accuracy") or self._results.get("loadgen:accuracy")
        if said is None:
            raise ProtocolBroken(
                "the worker finished without an accuracy", hint="see worker.log in the run's folder"
            )
        found = read_accuracy(said.values, str(job.accuracy["metric"]))
        expected = self._plan.model.expected
        claim = expected.accuracy if expected is not None else None
        self._findings.accuracy = check_accuracy(found.metric, found.value, found.samples, claim)
        self._findings.outputs = {
            "predictions_sha256": found.predictions_sha256,
            "outputs_sha256": found.outputs_sha256,
        }

    def _keep_samples(self, folder: RunFolder) -> None:
        samples = self._sampling.end()
        self._findings.resources |= resources(samples, self._phases.intervals())
        with suppress(StorageFailed):  # a full disk has its own error, or none: samples are not the result
            if save_samples(folder.path, samples) is not None:
                self._findings.files["samples"] = SAMPLES

    def _finish(self, folder: RunFolder, status: str) -> None:
        if self._plan.runtime.left:
            note_left_container(self._settings, self._plan.run_id)
        self._keep_samples(folder)
        if status != "completed":
            # What was found before it ended is not the result of a whole run.
            self._findings.result, self._findings.accuracy, self._findings.outputs = {}, None, {}
            self._findings.profiles = []
            self._findings.seen = seen_of(folder.path)
            self._findings.passes = passes_of_folder(folder.path)
            if self._plan.options.trace_level != "none":
                self._findings.files |= write_partial_trace(folder.path, trace_attributes(self._plan))
        self._findings.phases_s = self._phases.seconds()
        self.record = build_record(self._plan, status, self._findings)
        folder.write_record(self.record)
        self._index()

    def _keep_completed(self, folder: RunFolder) -> bool:
        """Return whether the record of a completed run is in place: whatever comes later takes nothing from it."""
        record = read_record(folder.path)
        if record is None or record.get("status") != "completed":
            return False
        self.record = record
        self._index()
        folder.append(End(status="completed", clocks=clock_snapshot()), source="host")
        return True

    def _index(self) -> None:
        assert self.record is not None
        try:
            RunDatabase(self._settings.data_dir / DATABASE).add(self.record)
        except StorageFailed as error:
            # The folder is the truth; the index takes it in when it can be used again.
            self._index_error = error


def _judge_submission(findings: Findings) -> None:
    """What does not count here is none to hand in: the reasons of the run go to those of LoadGen's part."""
    loadgen = findings.result.get("loadgen")
    if loadgen and findings.validity_reasons:
        loadgen["submission_valid"] = False
        known = loadgen["submission_reasons"]
        known += [reason for reason in findings.validity_reasons if reason not in known]


# From the level of kernels on, what the processor counts belongs to what is seen.
_COUNTED_LEVELS = ("system", "full")
_FILES = {"job": JOB, "outputs": "outputs.npz", "log": WORKER_LOG, "events": "events.jsonl"}


def _failed_event(error: MlbundleError) -> Failed:
    fault = getattr(error, "fault", "environment" if error.exit_code == 3 else "mlbundle")
    return Failed(reference=error.reference, message=error.message, hint=error.hint, fault=fault)


class _Stopping:
    """Makes `closing` stop a connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.stop()


class _PhaseClock:
    """When each phase began and ended, in ns on CLOCK_MONOTONIC."""

    def __init__(self, done: tuple[tuple[str, int, int], ...]) -> None:
        self._begun: dict[str, int] = {name: start for name, start, _ in done}
        self._done: dict[str, int] = {name: end for name, _, end in done}
        self._open: dict[str, int] = {}
        self._intervals: list[tuple[str, int, int]] = list(done)

    def take(self, event: Phase) -> None:
        """Note a phase event; a phase comes once in each process that measures."""
        if event.state == "begun":
            self._begun.setdefault(event.name, event.t_ns)
            self._open.setdefault(event.name, event.t_ns)
        elif event.name in self._open:
            start_ns = self._open.pop(event.name)
            self._done[event.name] = event.t_ns
            # The times are a worker's: none may take time away.
            self._intervals.append((event.name, start_ns, max(start_ns, event.t_ns)))

    def spans(self) -> list[tuple[str, int, int | None]]:
        """Return (name, first begin, last end) of every phase; None for one that has never ended."""
        return [(name, start, self._done.get(name)) for name, start in self._begun.items()]

    def intervals(self) -> list[tuple[str, int, int]]:
        """Return (name, start, end) of each time that a phase was done."""
        return list(self._intervals)

    def seconds(self) -> dict[str, float]:
        """Return name -> seconds of the phases that are done, all their intervals together."""
        total_ns: dict[str, int] = {}
        for name, start, end in self._intervals:
            total_ns[name] = total_ns.get(name, 0) + end - start
        return {name: round(total / 1e9, 6) for name, total in total_ns.items()}
