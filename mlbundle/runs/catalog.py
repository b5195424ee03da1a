"""The runs made so far, and the bundles that can be run by name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import PREFIX, is_hex
from mlbundle.bundle.layout import MODEL_PATH
from mlbundle.errors import ReferenceNotFound
from mlbundle.resources import built_in_models
from mlbundle.runs import removal
from mlbundle.runs.folder import is_driven, is_settled, read_record, run_folders, run_ids_in
from mlbundle.store.database import DATABASE, RunDatabase
from mlbundle.store.run_filter import most_first, only, parse_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mlbundle.config import Settings
    from mlbundle.store.blobs import BlobStore
    from mlbundle.store.entries import LibraryEntry

_SHOWN = 20


def list_runs(
    settings: Settings, *, limit: int = 50, model: str | None = None, framework: str | None = None
) -> list[dict[str, Any]]:
    """Return the latest runs, newest first; the index is rebuilt from the folders when it is gone."""
    return _database(settings).rows(limit=limit, model=model, framework=framework)


@dataclass(frozen=True)
class RunPage:
    """Rows `offset` to `offset + len(rows)` of the `total` runs that were asked for."""

    rows: list[dict[str, Any]]
    offset: int
    total: int


def search_runs(
    settings: Settings,
    text: str = "",
    *,
    model: str | None = None,
    framework: str | None = None,
    sort: str = "run",
    descending: bool | None = None,
    offset: int = 0,
    limit: int = 500,
) -> RunPage:
    """Return a page of the runs that fit a filter text (see `store.run_filter`), as the index knows them now.

    `model` and `framework` narrow it as for `list_runs`; `descending` None is what one wants to see of a column first.
    The folders are not looked at, so 100,000 runs are searched while one types: call `refresh_runs` first, and when
    something may have changed. Raises StorageFailed, KeyError for a `sort` that is not one of `run_filter.SORTS`.
    """
    chosen = only(parse_filter(text), model=model, framework=framework)
    descending = most_first(sort) if descending is None else descending
    database = RunDatabase(settings.data_dir / DATABASE)
    rows, total = database.page(chosen, sort=sort, descending=descending, offset=offset, limit=limit)
    return RunPage(rows, offset, total)


def runs_by_id(settings: Settings, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of some runs by their whole ids, in that order, as the index knows them now.

    What it does not know is left out. Raises StorageFailed.
    """
    return RunDatabase(settings.data_dir / DATABASE).rows_of(run_ids)


def refresh_runs(settings: Settings) -> None:
    """Take in the finished runs that the index does not know yet. Raises StorageFailed."""
    _database(settings)


def run_ids(settings: Settings, prefix: str = "") -> list[str]:
    """Return the ids of runs that begin with `prefix`, newest first."""
    return _database(settings).run_ids(prefix)


def show_run(settings: Settings, run: str) -> dict[str, Any]:
    """Return the record of a run by its id, the beginning of its id, or `latest`.

    Raises ReferenceNotFound when none or several fit.
    """
    database = _database(settings)
    try:
        record = database.record(pick_run(run, database.run_ids()))
    except ReferenceNotFound:
        for folder in run_folders(settings):
            if run and (run == "latest" or folder.name.startswith(run)) and is_driven(folder):
                raise ReferenceNotFound(
                    f"run {folder.name} goes on: it has no record yet",
                    hint=f"`mlbundle runs attach {folder.name}` shows it",
                ) from None
        raise
    if record is None:  # removed by somebody else meanwhile
        raise ReferenceNotFound(f"no run is called {run!r}", hint="`mlbundle runs list` shows them")
    return record


def run_record(settings: Settings, run_id: str) -> dict[str, Any]:
    """Return the record of a run by its whole id, without a look at the other runs.

    Raises ReferenceNotFound when there is none.
    """
    record = read_record(settings.runs_dir / run_id) if run_id == Path(run_id).name else None
    return show_run(settings, run_id) if record is None else record


def pick_run(run: str, ids: Sequence[str]) -> str:
    """Return which of the ids, newest first, is meant by an id, the beginning of one, or `latest`.

    Raises ReferenceNotFound when none or several fit.
    """
    fitting = list(ids) if run == "latest" else [run_id for run_id in ids if run_id.startswith(run)]
    if not fitting or not run:
        raise ReferenceNotFound(f"no run is called {run!r}", hint="`mlbundle runs list` shows them")
    if run == "latest" or run in fitting:
        return run if run in fitting else fitting[0]
    if len(fitting) > 1:
        raise ReferenceNotFound(
            f"{len(fitting)} runs begin with {run!r}", context=fitting[:_SHOWN], hint="give more of the id"
        )
    return fitting[0]


def choose_runs(settings: Settings, names: Sequence[str]) -> list[str]:
    """Return the ids of the runs that are named (as for `show_run`), each once; also of those that go on.

    Raises ReferenceNotFound.
    """
    ids = {*_database(settings).run_ids(), *(folder.name for folder in run_folders(settings))}
    return list(dict.fromkeys(pick_run(name, sorted(ids, reverse=True)) for name in names))


def remove_run(settings: Settings, run_id: str) -> None:
    """Remove a run: its folder and its row. Raises UsageError when it goes on, StorageFailed."""
    removal.remove_run(settings.runs_dir, run_id, RunDatabase(settings.data_dir / DATABASE))


def known_bundles(settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the bundles of the library and the built-in ones, and what is wrong with entries that can't be read.

    `variants` are the forms of a model; they are None for a bundle of the library, whose manifest is not read here.
    """
    from mlbundle.store.find import sort_key
    from mlbundle.store.library import Library

    library = Library(settings.data_dir)
    entries, problems = library.scan()
    found = [_entry_document(entry, library.store) for entry in sorted(entries, key=sort_key)]
    library.store.close()
    return [*found, *built_in_bundles()], [f"{problem.path}: {problem.message}" for problem in problems]


def _entry_document(entry: LibraryEntry, store: BlobStore) -> dict[str, Any]:
    frameworks = _frameworks_of_entry(entry, store)
    return {
        "name": entry.name,
        "version": entry.version,
        "where": "library",
        "digest": entry.manifest_digest,
        "size": entry.size_bytes,
        "framework": " ".join(frameworks[0]) if frameworks else None,
        "frameworks": " ".join(name for name, _ in frameworks) if frameworks else None,
        "variants": None,
        "description": f"from {entry.source}",
    }


def _frameworks_of_entry(entry: LibraryEntry, store: BlobStore) -> list[tuple[str, str]]:
    """Return names and versions of the frameworks of a bundle, the top level's first; none where it is damaged.

    Three small documents are read, so thousands of bundles are listed at once.
    """
    from mlbundle.bundle import oci
    from mlbundle.bundle.checked import read_document
    from mlbundle.bundle.document import parse_bundle
    from mlbundle.bundle.layout import BUNDLE_LAYER
    from mlbundle.bundle.strictjson import MAX_BYTES, loads
    from mlbundle.errors import MlbundleError

    where = f"{entry.reference}#"
    try:
        model = oci.parse_index(loads(entry.index, where=where), where).model
        text = read_document(store, model, MAX_BYTES, "the model manifest")
        layer = oci.parse_manifest(loads(text, where=where), where).layers[0]
        document = parse_bundle(
            loads(read_document(store, layer, MAX_BYTES, BUNDLE_LAYER), where=where), where
        )
    except MlbundleError:  # `list` goes on: verify and repair say what is wrong with it
        return []
    return [(document.framework_name, document.framework_version), *document.frameworks]


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


def forms_of_run(settings: Settings, row: Mapping[str, Any]) -> list[str]:
    """Return the forms of the model of a run (a row of `list_runs`), in the order of its manifest.

    The manifest is that of the unpacked bundle, else a built-in one of that name; none where both are gone.
    """
    digest = str(row["manifest_digest"]).removeprefix(PREFIX)
    unpacked = settings.data_dir / "bundles" / digest / MODEL_PATH
    return (variants_of(str(unpacked)) if is_hex(digest) and unpacked.is_file() else []) or (
        variants_of(row["model"]) if row["model"] in built_in_models() else []
    )


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
    state = _state(settings.runs_dir)
    count, unknown = _NOT_TAKEN_IN.get(state, (0, None)) if state is not None else (0, None)
    if unknown is None or database.count() < count:  # not looked at yet, or the index was made anew
        removal.finish_removals(settings.runs_dir, database)
        unknown = [run_id for some in run_ids_in(settings.runs_dir) for run_id in database.unknown(some)]
    left = [run_id for run_id in sorted(unknown) if not _take_in(settings.runs_dir / run_id, database)]
    _NOT_TAKEN_IN.clear()
    if state is not None and state == _state(settings.runs_dir):
        _NOT_TAKEN_IN[state] = database.count(), left
    return database


# What the folder of all runs was -> how many rows the index had then, and the runs without one: others can't have
# come since.
_NOT_TAKEN_IN: dict[tuple[str, int], tuple[int, list[str]]] = {}


def _state(runs_dir: Path) -> tuple[str, int] | None:
    """Return what changes when a run comes or goes; None where that can't be told."""
    with suppress(OSError):
        changed_ns = runs_dir.stat().st_mtime_ns
        if is_settled(changed_ns):
            return str(runs_dir), changed_ns
    return None


def _take_in(folder: Path, database: RunDatabase) -> bool:
    """Add the row of a run; whether it has one now."""
    record = read_record(folder)
    # A document of somebody else's: members lack, or are other things, or numbers that no column holds.
    with suppress(LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        if record is not None:
            database.add(record)
            return True
    return False
