"""What a bundle holds, for who looks into it: its manifest as it is written, its claims, its files. Nothing is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.errors import ReferenceNotFound
from mlbundle.manifest.load import parse_model
from mlbundle.manifest.source import read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlbundle.bundle.content import SourceFile
    from mlbundle.bundle.reader import BundleReader
    from mlbundle.config import Settings
    from mlbundle.manifest.model import ModelManifest
    from mlbundle.runs.network import Network
    from mlbundle.runs.shelf import BundleRow


@dataclass(frozen=True)
class HeldFile:
    """One file of a bundle; `sha256` is hexadecimal, None where nobody has computed it yet; `what` says what it is."""

    path: str
    size_bytes: int
    sha256: str | None
    what: str


@dataclass(frozen=True)
class BundleDetail:
    """A bundle as its documents describe it.

    `text` is its model manifest as the author wrote it, `path` the file of it where it can be edited, None in a bundle.
    `model` is None where the manifest has problems: `problems` says which. `attached` are the kinds of what is attached
    (signatures, bills of materials), `embedded` the images that it carries, `pinned` those that it names by digest.
    """

    text: str
    path: Path | None
    model: ModelManifest | None
    problems: tuple[str, ...]
    files: tuple[HeldFile, ...] = ()
    digest: str | None = None
    set_digest: str | None = None
    size_bytes: int | None = None
    attached: tuple[str, ...] = ()
    embedded: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()


def look_into(row: BundleRow, settings: Settings, network: Network | None = None) -> BundleDetail:
    """Return what a bundle of the shelf holds; of one in a registry only the documents are fetched.

    Raises what opening it raises; a manifest on disk that has problems is no error.
    """
    if row.where in {"built in", "to make"} or (row.where == "folder" and Path(row.reference).is_dir()):
        return _of_manifest(row)
    with open_row(row, settings, network, whole=False) as reader:
        return _of_reader(reader)


def open_row(
    row: BundleRow, settings: Settings, network: Network | None = None, *, whole: bool = True
) -> BundleReader:
    """Open a bundle of the shelf; one of the library is found by its digest alone, not among all entries.

    Raises what opening it raises.
    """
    from mlbundle.runs.opening import open_entry, open_reference
    from mlbundle.store.library import Library

    if row.where == "library" and row.digest is not None:
        entry = Library(settings.data_dir).entry(row.digest)
        if entry is None:
            raise ReferenceNotFound(f"{row.reference} is no longer in the library", hint="F5 looks anew")
        return open_entry(entry, settings)
    return open_reference(row.reference, settings, network, whole=whole, packed=whole)


def _of_manifest(row: BundleRow) -> BundleDetail:
    from mlbundle.errors import MlbundleError
    from mlbundle.runs.packing import collect, locate

    if row.where == "to make":
        return BundleDetail("", None, None, ())
    place = locate(Path(row.source))
    data = read_bytes(place.model)
    loaded = parse_model(data, str(place.model))
    problems = [str(problem) for problem in loaded.problems]
    files: tuple[HeldFile, ...] = ()
    try:
        # Of a manifest that can't be read it would say once more what is wrong with it.
        files = tuple(_held(file) for file in collect(place.root).files) if loaded.value is not None else ()
    except (MlbundleError, OSError) as error:
        problems.append(str(error))
    return BundleDetail(
        text=data.decode("utf-8", "replace"),
        path=place.model,
        model=loaded.value,
        problems=tuple(dict.fromkeys(problems)),
        files=files,
        size_bytes=sum(file.size_bytes for file in files) or None,
    )


def _held(file: SourceFile) -> HeldFile:
    size_bytes = len(file.source) if isinstance(file.source, bytes) else file.source.stat().st_size
    stated = file.checksum
    digest = stated.hex if stated is not None and stated.algorithm == "sha256" else None
    return HeldFile(file.path, size_bytes, digest, file.role.name.lower())


def _of_reader(reader: BundleReader) -> BundleDetail:
    loaded = parse_model(reader.model_yaml, "model.yml")
    kinds: Callable[[int], str] = dict(
        enumerate(layer.media_type.rpartition(".model.")[2] for layer in reader.layers)
    ).__getitem__
    index = reader.structure.index
    predicates = {referrer.manifest.hex: referrer.predicate_type for referrer in reader.referrers}
    return BundleDetail(
        text=reader.model_yaml.decode("utf-8", "replace"),
        path=None,
        model=loaded.value,
        problems=tuple(str(problem) for problem in loaded.errors),
        files=tuple(HeldFile(f.path, f.size_bytes, f.sha256, kinds(f.layer)) for f in reader.files),
        digest=reader.manifest_digest,
        set_digest=reader.set_digest,
        size_bytes=reader.size_bytes,
        attached=tuple(
            predicates.get(entry.descriptor.hex) or entry.artifact_type for entry in index.referrers
        ),
        embedded=tuple(f"{entry.framework or ''} {entry.accelerator}".strip() for entry in index.images),
        pinned=tuple(f"{pin.place} {pin.image}" for pin in reader.document.images),
    )
