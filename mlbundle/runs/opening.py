"""Opens a bundle wherever it is: a file, the library, a registry, a web address, or a manifest that is packed first."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.bundle.reader import open_archive, open_blobs, open_bundle, open_remote
from mlbundle.errors import IntegrityError, NotABundle, StorageFailed
from mlbundle.runs.network import Network
from mlbundle.runs.references import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlbundle.bundle.reader import BundleReader
    from mlbundle.config import Settings
    from mlbundle.registry.client import RegistryClient
    from mlbundle.registry.reference import RegistryReference
    from mlbundle.runs.references import Reference
    from mlbundle.store.entries import LibraryEntry


def open_reference(
    text: str,
    settings: Settings,
    network: Network | None = None,
    *,
    whole: bool = True,
    packed: bool = False,
    report: Callable[[str], None] = lambda _line: None,
) -> BundleReader:
    """Open the bundle that `text` means; see `open_found`."""
    found = resolve(text, settings)
    return open_found(found, settings, network, whole=whole, packed=packed, report=report)


def open_found(
    found: Reference,
    settings: Settings,
    network: Network | None = None,
    *,
    whole: bool = True,
    packed: bool = False,
    report: Callable[[str], None] = lambda _line: None,
) -> BundleReader:
    """Open what a reference means.

    Without `whole`, only the documents of a bundle far away are looked at; `report` hears what a registry has about
    it that can't be used. A manifest is packed, unless what is wanted is a bundle that is `packed` already. Raises
    what `open_bundle` raises, NotABundle for a manifest then, and the errors of packing, of registries and of the
    store.
    """
    network = network or Network()
    if found.kind == "bundle":
        return open_bundle(found.path)
    if found.kind == "library":
        assert found.entry is not None
        return open_entry(found.entry, settings)
    if found.kind == "registry":
        assert found.registry is not None
        return open_registry(found.registry, network, whole=whole, report=report)
    if found.kind == "web":
        return _open_web(found.text, network, whole=whole)
    if packed:
        raise NotABundle(
            f"{found.text} is a manifest and no bundle",
            where=str(found.path),
            hint="`mlbundle pack` makes one of it",
        )
    return _open_manifest(found)


def open_entry(entry: LibraryEntry, settings: Settings) -> BundleReader:
    """Open a bundle of the library; its blobs are not collected until it is closed."""
    from mlbundle.bundle.overlay import NamedBlobs
    from mlbundle.store.library import Library

    library, held = Library(settings.data_dir), ExitStack()
    held.callback(library.store.close)
    try:
        # A folder that can't be written can't be collected either.
        with suppress(StorageFailed):
            held.enter_context(library.adding())
        return open_blobs(NamedBlobs(library.store, entry.reference, close=held.close), entry.index)
    except BaseException as error:
        held.close()
        if isinstance(error, IntegrityError):
            error.hint = entry.mending_hint
        raise


def open_registry(
    reference: RegistryReference,
    network: Network,
    *,
    whole: bool,
    report: Callable[[str], None] = lambda _line: None,
) -> BundleReader:
    """Open a bundle in a registry; its blobs are read as they are needed."""
    from mlbundle.bundle.overlay import NamedBlobs
    from mlbundle.registry.blobs import RegistryBlobs
    from mlbundle.runs.exchange import index_of

    client = client_of(reference, network)
    try:
        blobs = RegistryBlobs(client)
        index = index_of(client, blobs, reference, report)
        return open_blobs(NamedBlobs(blobs, str(reference), close=client.close), index, whole=whole)
    except BaseException:
        client.close()
        raise


def bring(
    found: Reference,
    settings: Settings,
    network: Network | None = None,
    *,
    report: Callable[[str], None] = lambda _line: None,
    progress: Callable[[int, int], None] | None = None,
) -> LibraryEntry:
    """Return the library's entry of a reference; what is not in the library is added to it, or pulled.

    Raises IntegrityError, StorageFailed, and the errors of packing and of registries.
    """
    from mlbundle.runs.exchange import Pull, add_to_library

    if found.kind == "library":
        assert found.entry is not None
        return found.entry
    network = network or Network()
    if found.kind == "registry":
        assert found.registry is not None
        report(f"pulling {found.text}")
        with client_of(found.registry, network) as client:
            return Pull(client, found.registry, settings).fetch(progress)
    with open_found(found, settings, network) as reader:
        return add_to_library(reader, settings, progress)


def client_of(reference: RegistryReference, network: Network, *, to_push: bool = False) -> RegistryClient:
    """Return a client of the repository that a reference names; `to_push` asks for that right from the beginning."""
    from mlbundle.registry.client import client_for

    return client_for(reference, to_push=to_push, **network.settings())


def _open_web(address: str, network: Network, *, whole: bool) -> BundleReader:
    from mlbundle.registry.web import WebFile

    file = WebFile(address, **network.settings())
    return open_archive(file) if whole else open_remote(file)


def _open_manifest(found: Reference) -> BundleReader:
    import tempfile

    from mlbundle.runs.packing import pack_manifest

    with tempfile.TemporaryDirectory(prefix="mlbundle-pack-") as folder:
        # The open file outlives its name.
        reader = open_bundle(pack_manifest(found.path, Path(folder) / "bundle.mlb").path)
        reader.name = found.text
        return reader
