"""What a reference on the command line means: a bundle file, a folder or manifest, or a built-in name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlbundle.errors import ReferenceNotFound
from mlbundle.resources import built_in_models


@dataclass(frozen=True)
class Reference:
    """A bundle file, or a manifest that has to be packed first; `built_in` is its name if we ship it."""

    kind: Literal["bundle", "manifest"]
    path: Path
    built_in: str | None = None


def resolve(text: str) -> Reference:
    """Return what `text` refers to: a path first, then the built-in manifests.

    Raises ReferenceNotFound with what was probably meant.
    """
    path = Path(text)
    if path.is_dir() or path.suffix in {".yml", ".yaml"}:
        if path.exists():
            return Reference(kind="manifest", path=path)
    elif path.is_file():
        return Reference(kind="bundle", path=path)
    models = built_in_models()
    if text in models:
        return Reference(kind="manifest", path=models[text], built_in=text)
    close = difflib.get_close_matches(text, models, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ReferenceNotFound(
        f"no file, folder or built-in bundle is called {text!r}",
        hint=f"{hint}`mlbundle list` shows the built-in ones",
    )
