"""What a reference on the command line means: a file, a folder, a name in the library, a registry, an address."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from mlbundle.errors import ReferenceNotFound, UsageError
from mlbundle.resources import built_in_models, generated_models

if TYPE_CHECKING:
    from mlbundle.config import Settings
    from mlbundle.registry.reference import RegistryReference
    from mlbundle.store.entries import LibraryEntry

WEB_SCHEMES = ("https://", "http://")


class Reference(NamedTuple):
    """What a text refers to; of the places, the one that `kind` speaks of is set.

    `path` is a bundle file, or a folder or manifest that has to be packed first; `built_in` its name if we ship it;
    `entry` a bundle of the library; `registry` a repository; `text` what was written.
    """

    kind: Literal["bundle", "manifest", "library", "registry", "web"]
    text: str
    path: Path = Path()
    built_in: str | None = None
    entry: LibraryEntry | None = None
    registry: RegistryReference | None = None


def resolve(text: str, settings: Settings, *, to_pack: bool = False) -> Reference:
    """Return what `text` refers to: an address, else a path, a name in the library, a built-in manifest.

    A repository is written with its scheme, `oci://`: a path with a slip of the pen must not go to the network.

    What is wanted `to_pack` is a built-in manifest before it is a bundle of that name in the library. Raises
    ReferenceNotFound with what was probably meant, UsageError for a name that several bundles have.
    """
    if not text:
        raise UsageError("the reference is empty", hint="name a file, a folder (. is this one) or a bundle")
    if text.startswith(WEB_SCHEMES):
        return Reference(kind="web", text=text)
    if text.startswith("oci://"):
        return _registry(text)
    path = Path(text)
    with suppress(OSError, ValueError):  # too long for a name, or with a NUL: no path
        if path.is_dir() or (path.suffix in {".yml", ".yaml"} and path.exists()):
            return Reference(kind="manifest", text=text, path=path)
        if path.exists():
            return Reference(kind="bundle", text=text, path=path)
    models = built_in_models()
    entry = None if to_pack and text in models else _in_library(text, settings)
    if entry is not None:
        return Reference(kind="library", text=text, entry=entry)
    if text in models:
        return Reference(kind="manifest", text=text, path=models[text], built_in=text)
    raise _not_found(text, settings)


def _registry(text: str) -> Reference:
    from mlbundle.registry.reference import parse

    return Reference(kind="registry", text=text, registry=parse(text))


def _in_library(text: str, settings: Settings) -> LibraryEntry | None:
    from mlbundle.store.library import Library

    if not (settings.data_dir / "library").is_dir():
        return None
    try:
        return Library(settings.data_dir).find(text)
    except ReferenceNotFound:
        return None


def _not_found(text: str, settings: Settings) -> ReferenceNotFound:
    import difflib

    from mlbundle.registry.reference import looks_like_registry
    from mlbundle.store.library import Library

    if looks_like_registry(text):
        return ReferenceNotFound(
            f"no file, folder or bundle is called {text!r}", hint=f"a repository is written oci://{text}"
        )
    if text in generated_models():
        return ReferenceNotFound(
            f"{text} is not here: it is too big to ship",
            hint=f"`mlbundle generate {text}` makes a folder that can be run",
        )
    known = [
        *built_in_models(),
        *generated_models(),
        *(entry.name for entry in Library(settings.data_dir).entries()),
    ]
    close = difflib.get_close_matches(text.partition(":")[0], known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ReferenceNotFound(
        f"no file, folder or bundle is called {text!r}",
        hint=f"{hint}`mlbundle list` shows the bundles that are here; a registry's begin with oci://",
    )
