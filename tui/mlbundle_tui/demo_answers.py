"""What the demo says of this machine: what was recorded is ready, whatever is missing here; of the rest it says so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mlbundle.errors import MlbundleError
from mlbundle.runs.folder import JOB
from mlbundle.runs.readiness import Readiness, Way, broken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mlbundle.config import Settings
    from mlbundle.runs.asking import Ask
    from mlbundle.runs.plan import RunOptions
    from mlbundle.runs.readiness import Here
    from mlbundle.runs.shelf import BundleRow, Shelf
    from mlbundle_tui.demo import Recording

_DAY = 10


class DemoAnswers:
    """Answers questions and judges bundles from recordings; what they say nothing of is asked of `otherwise`."""

    def __init__(
        self,
        recordings: Sequence[Recording],
        choose: Callable[[RunOptions], Recording],
        otherwise: Ask,
    ) -> None:
        self._records = [r.record for r in recordings if r.record["status"] == "completed"]
        self._choose = choose
        self._otherwise = otherwise

    def ask(self, question: str, settings: Settings, **about: Any) -> Any:
        """Answer as `Ask` does: the plan of a run is that of its recording. Raises UsageError where there is none."""
        if question != "plan":
            return self._otherwise(question, settings, **about)
        from mlbundle.runs.request import RunRequest

        return _plan(self._choose(RunRequest(**about["request"]).run_options(settings, dry_run=True)))

    def judge(self, row: BundleRow, shelf: Shelf, _here: Here) -> Readiness:
        """Return what of a bundle was recorded, and note its state on the shelf."""
        found = self._judged(row, shelf)
        shelf.note_state(row.key, found.state, found.rank)
        return found

    def _judged(self, row: BundleRow, shelf: Shelf) -> Readiness:
        try:
            facts = shelf.facts(row.key)
        except MlbundleError as error:
            return broken(error.message, "unusable")
        records = {r["framework"]["variant"]: r for r in self._records if r["bundle"]["name"] == row.name}
        if facts is None or not records:
            names = ", ".join(sorted({r["bundle"]["name"] for r in self._records}))
            return broken(f"the demo has no recording of it, only of {names}", "not here")
        return Readiness(
            tuple(_way(form.name, form.framework, records.get(form.name)) for form in facts.forms)
        )


def _way(form: str, framework: str, record: Mapping[str, Any] | None) -> Way:
    if record is None:
        return Way(form, framework, "docker", "cpu", "not here", "the demo has no recording of it")
    version = f"{framework} {record['framework']['version']}"
    found = f"recorded on {record['started_at'][:_DAY]}: a run of it happens again"
    return Way(form, version, record["runtime"], record["accelerator"], "ready", found)


def _plan(recording: Recording) -> dict[str, Any]:
    """Return what `explain` says of a plan, of the run that was recorded, and `recording`: which it was."""
    record, bundle = recording.record, recording.record["bundle"]
    image, environment = record["image"], record["environment"]
    return {
        "recording": record["run_id"],
        "bundle": f"{bundle['name']}:{bundle['version']} {bundle['manifest_digest']}",
        "variant": record["framework"]["variant"],
        "framework": f"{record['framework']['name']} {record['framework']['version']}",
        **{name: record[name] for name in ("runtime", "architecture", "accelerator")},
        "emulated": environment["emulated"],
        "isolation": environment["isolation"],
        "image": None if image is None else f"{image['ref']} {image['config_digest']}",
        "container": None,
        "job": json.loads((recording.folder / JOB).read_bytes()),
    }
