"""The runs made so far, and the bundles that can be run by name."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ReferenceNotFound
from mlbundle.resources import built_in_models
from mlbundle.runs.execute import DATABASE
from mlbundle.runs.folder import read_record, run_folders
from mlbundle.store.database import RunDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlbundle.config import Settings


def list_runs(settings: Settings, *, limit: int = 50, model: str | None = None) -> list[dict[str, Any]]:
    """Return the latest runs, newest first; the index is rebuilt from the folders when it is gone."""
    return _database(settings).rows(limit=limit, model=model)


def run_ids(settings: Settings, prefix: str = "") -> list[str]:
    """Return the ids of runs that begin with `prefix`, newest first."""
    return _database(settings).run_ids(prefix)


def show_run(settings: Settings, run: str) -> dict[str, Any]:
    """Return the record of a run by its id, the beginning of its id, or `latest`.

    Raises ReferenceNotFound when none or several fit.
    """
    database = _database(settings)
    ids = database.run_ids() if run == "latest" else database.run_ids(run)
    if not ids:
        raise ReferenceNotFound(f"no run is called {run!r}", hint="`mlbundle runs list` shows them")
    if run != "latest" and run not in ids and len(ids) > 1:
        raise ReferenceNotFound(f"{len(ids)} runs begin with {run!r}", hint="give more of the id")
    run_id = run if run in ids else ids[0]
    record = database.record(run_id)
    assert record is not None
    return record


def trace_summary(settings: Settings, run: str) -> list[dict[str, Any]]:
    """Return where the time of a traced run went: a row for each step of each pass, times in ns.

    Raises ReferenceNotFound when there is no such run or it was not traced.
    """
    from mlbundle.trace.spans import load_spans
    from mlbundle.trace.summary import summarise

    record = show_run(settings, run)
    path = settings.runs_dir / record["run_id"] / "spans.npz"
    if not path.is_file():
        raise ReferenceNotFound(
            f"run {record['run_id']} was not traced",
            where=str(path),
            hint="run with --trace model (the default)",
        )
    traced = [p["kind"] for p in record["passes"] if any(f.endswith("spans.npz") for f in p["files"])]
    return [
        {
            "pass": traced[row.pass_number] if row.pass_number < len(traced) else str(row.pass_number),
            "step": row.name,
            "count": row.count,
            "total_ns": row.total_ns,
            "mean_ns": row.mean_ns,
            "p50_ns": row.p50_ns,
        }
        for row in summarise(load_spans(path))
    ]


def known_bundles(settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the bundles of the library and the built-in ones, and what is wrong with entries that can't be read."""
    from mlbundle.store.find import sort_key
    from mlbundle.store.library import Library

    entries, problems = Library(settings.data_dir).scan()
    found = [
        {
            "name": entry.name,
            "version": entry.version,
            "where": "library",
            "digest": entry.manifest_digest,
            "size": entry.size_bytes,
            "framework": None,
            "frameworks": None,
            "variants": None,
            "description": f"from {entry.source}",
        }
        for entry in sorted(entries, key=sort_key)
    ]
    return [*found, *built_in_bundles()], [f"{problem.path}: {problem.message}" for problem in problems]


def bundles_of_runs(settings: Settings) -> Iterator[str]:
    """Yield the manifest digests of the bundles that runs name: their unpacked files are not collected."""
    for folder in run_folders(settings):
        record = read_record(folder)
        bundle = record.get("bundle") if isinstance(record, dict) else None
        if isinstance(bundle, dict):
            yield str(bundle.get("manifest_digest"))


def variants_of(reference: str) -> list[str]:
    """Return the names of the forms of a built-in model or of the manifest in a folder; none where there is none."""
    from mlbundle.errors import MlbundleError
    from mlbundle.manifest.load import load_model
    from mlbundle.manifest.select import variant_names

    folder = built_in_models().get(reference, Path(reference or "."))
    try:
        return variant_names(load_model(folder).require())
    except MlbundleError:
        return []


def built_in_bundles() -> list[dict[str, Any]]:
    """Return name, version, frameworks, forms and description of each built-in manifest."""
    from mlbundle.manifest.load import load_model
    from mlbundle.manifest.select import frameworks_of, variant_names

    found = []
    for name, folder in built_in_models().items():
        model = load_model(folder / "model.yml").require()
        found.append(
            {
                "name": name,
                "version": model.version,
                "where": "built in",
                "digest": None,
                "size": None,
                "framework": f"{model.framework.name} {model.framework.version}",
                "frameworks": " ".join(frameworks_of(model)),
                "variants": variant_names(model),
                "description": " ".join((model.description or "").split()),
            }
        )
    return found


def _database(settings: Settings) -> RunDatabase:
    """Return the index, after taking in every finished run that it does not know yet."""
    database = RunDatabase(settings.data_dir / DATABASE)
    folders = {folder.name: folder for folder in run_folders(settings)}
    if folders:
        for run_id in sorted(set(folders) - set(database.run_ids())):
            record = read_record(folders[run_id])
            if record is not None:
                with suppress(KeyError, TypeError, AttributeError):  # a document of somebody else's
                    database.add(record)
    return database
