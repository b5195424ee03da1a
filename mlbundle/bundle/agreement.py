"""Whether the manifests in a bundle are called as the bundle says: policies go by the one, runs by the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle.bundle.layout import FRAMEWORK_PATH, MODEL_PATH, further_framework_path
from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from mlbundle.bundle.reader import BundleReader

_NAMED = ("name", "version")


def check_names(reader: BundleReader) -> None:
    """Raise BundleCorrupt when name or version in a manifest are not those in `bundle.json`.

    What is not there, or can't be read as YAML, is left to the validation of the manifest.
    """
    document = reader.document
    for path, data, name, version in (
        (MODEL_PATH, reader.model_yaml, document.model_name, document.model_version),
        (FRAMEWORK_PATH, reader.framework_yaml, document.framework_name, document.framework_version),
        *(
            (further_framework_path(name), reader.further_frameworks[name.lower()], name, version)
            for name, version in document.frameworks
        ),
    ):
        for key, stated in zip(_NAMED, (name, version), strict=True):
            found = _top_level(data, key)
            if found is not None and found != stated:
                raise BundleCorrupt(
                    f"the bundle calls the {key} {stated!a} and its manifest {found[:100]!a}",
                    where=f"{reader.name}!{path}#/{key}",
                )


def _top_level(data: bytes, key: str) -> str | None:
    from mlbundle.manifest.nodes import Scalar
    from mlbundle.manifest.source import parse_source

    root = parse_source(data, "manifest").root
    entry = None if root is None else root.entry(key)
    return entry.value.text if entry is not None and isinstance(entry.value, Scalar) else None
