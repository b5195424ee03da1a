"""Bundles that are not in the library, as rows of the shelf: built-in ones, those of a folder, those of a registry."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.errors import MlbundleError, ReferenceNotFound, StorageFailed, UsageError
from mlbundle.manifest.load import MODEL_FILE
from mlbundle.resources import built_in_models, generated_models
from mlbundle.runs.bundle_facts import BundleFacts, facts_of_manifest, facts_of_reader
from mlbundle.runs.shelf import BundleRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlbundle.bundle.reader import BundleReader
    from mlbundle.runs.network import Network

    Found = tuple[BundleRow, BundleFacts | None]

BUNDLE_SUFFIX = ".mlb"
REGISTRY_SCHEME = "oci://"
MAX_FOUND = 2000
"""The most that is shown of one folder or one repository."""

_SOURCE_HINT = "oci://HOST/REPOSITORY, and then --plain-http or --ca-file FILE if need be"
_MAX_FOLDERS = 20_000
_DEPTH = 4


def parse_source(text: str) -> tuple[str, Network]:
    """Return the place that a line names and how it is reached: `oci://HOST/NAME [--plain-http] [--ca-file FILE]`.

    Raises UsageError for anything else behind the place.
    """
    import shlex

    from mlbundle.runs.network import Network

    if not text.startswith(REGISTRY_SCHEME):  # the name of a folder may hold anything
        return text, Network()
    try:
        place, *options = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}", hint=_SOURCE_HINT) from error
    plain_http, ca_file = False, None
    while options:
        option = options.pop(0)
        if option == "--plain-http":
            plain_http = True
        elif option == "--ca-file" and options:
            ca_file = Path(options.pop(0)).expanduser()
        else:
            raise UsageError(f"{option!r} is not known here", hint=_SOURCE_HINT)
    return place, Network(plain_http=plain_http, ca_file=ca_file)


def built_in_rows() -> Iterator[Found]:
    """Yield the built-in models, and those that `mlbundle generate` makes."""
    for name, folder in built_in_models().items():
        yield _manifest_row(folder, key=f"built in:{name}", reference=name, where="built in")
    from mlbundle.runs.generate import find_model_recipe

    for name in generated_models():
        row = BundleRow(
            key=f"to make:{name}",
            where="to make",
            reference=name,
            name=name,
            version="",
            description=find_model_recipe(name).description,
            source=f"mlbundle generate {name}",
        )
        yield row, None


def folder_rows(folder: Path, cancelled: Callable[[], bool] = lambda: False) -> Iterator[Found]:
    """Yield the manifests and bundle files of a folder and of the folders in it, four deep; links are not followed.

    `folder` may be a bundle file or a model.yml itself. What can't be read as a bundle is a row with the problem.
    Raises ReferenceNotFound where there is nothing, StorageFailed where it can't be read.
    """
    for path in _candidates(folder, cancelled):
        reference = str(path)
        if path.suffix == BUNDLE_SUFFIX:
            yield _file_row(path, reference)
        else:
            yield _manifest_row(path, key=f"folder:{reference}", reference=reference, where="folder")


def registry_rows(
    text: str, network: Network | None = None, cancelled: Callable[[], bool] = lambda: False
) -> Iterator[Found]:
    """Yield the bundles of a repository: the one that `text` names, else one for each version, the highest first.

    Only documents are fetched. Raises UsageError, RegistryUnavailable, RegistryDenied, RegistryAnswerInvalid.
    """
    from mlbundle.registry.reference import parse
    from mlbundle.runs.network import Network
    from mlbundle.runs.opening import client_of, open_registry
    from mlbundle.runs.remote import versions_in

    network = network or Network()
    repository = parse(text)
    wanted = [repository]
    if repository.manifest is None:
        with client_of(repository, network) as client:
            tags = versions_in(client)
        wanted = [repository.with_(tag=tag) for tag in reversed(tags[-MAX_FOUND:])]
    for reference in wanted:
        if cancelled():
            return
        row = BundleRow(
            key=f"registry:{reference}",
            where="registry",
            reference=str(reference),
            name=reference.repository.rpartition("/")[2],
            version=reference.tag or "",
            source=str(reference),
        )
        try:
            with open_registry(reference, network, whole=False) as reader:
                yield _read(row, reader)
        except MlbundleError as error:
            if len(wanted) == 1:
                raise
            yield _bad(row, error), None


def _candidates(folder: Path, cancelled: Callable[[], bool]) -> Iterator[Path]:
    """Yield bundle files, and folders with a model.yml, in the order of their paths."""
    if os.path.isfile(folder):  # noqa: PTH113 - that of Path raises for names that are too long
        if folder.name == MODEL_FILE or folder.suffix == BUNDLE_SUFFIX:
            yield folder.parent if folder.name == MODEL_FILE else folder
        return
    found = folders = 0
    waiting = [(folder, 0)]
    while waiting and found < MAX_FOUND and folders < _MAX_FOLDERS and not cancelled():
        here, depth = waiting.pop()
        folders += 1
        try:
            with os.scandir(here) as entries:
                children = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if here == folder:
                raise _not_opened(error, folder) from error
            continue
        if any(entry.name == MODEL_FILE and entry.is_file() for entry in children):
            found += 1
            yield here
        for entry in children:
            if entry.name.endswith(BUNDLE_SUFFIX) and entry.is_file():
                found += 1
                yield Path(entry.path)
        if depth < _DEPTH:
            below = [e for e in children if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
            waiting += [(Path(entry.path), depth + 1) for entry in reversed(below)]


def _not_opened(error: OSError, place: Path) -> MlbundleError:
    """Return why nothing can be listed of a place."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        hint = "look whether the path is right; a repository of a registry is written oci://HOST/REPOSITORY"
        return ReferenceNotFound(f"there is no folder or file {place}", hint=hint)
    hint = "look whether you may read it: `ls -ld` tells its owner and permissions"
    return StorageFailed(error.strerror or str(error), where=str(place), hint=hint)


def _manifest_row(path: Path, *, key: str, reference: str, where: str) -> Found:
    from mlbundle.manifest.load import load_model

    row = BundleRow(key=key, where=where, reference=reference, name=path.name, version="", source=str(path))  # type: ignore[arg-type]
    try:
        model = load_model(path).require()
        row = replace(row, name=model.name, version=model.version)
        return row, facts_of_manifest(path)
    except MlbundleError as error:
        return _bad(row, error), None


def _file_row(path: Path, reference: str) -> Found:
    from mlbundle.bundle.reader import open_bundle

    row = BundleRow(
        key=f"folder:{reference}",
        where="folder",
        reference=reference,
        name=path.name,
        version="",
        source=reference,
    )
    try:
        with open_bundle(path) as reader:
            return _read(row, reader)
    except MlbundleError as error:
        return _bad(row, error), None


def _read(row: BundleRow, reader: BundleReader) -> Found:
    document = reader.document
    found = replace(
        row,
        name=document.model_name,
        version=document.model_version,
        size=reader.size_bytes,
        digest=reader.manifest_digest,
        description=reader.config.description or "",
    )
    return found, facts_of_reader(reader)


def _bad(row: BundleRow, error: MlbundleError) -> BundleRow:
    return replace(row, read=True, problem=error.message)
