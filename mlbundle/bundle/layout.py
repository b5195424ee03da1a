"""Where things stand in a bundle: paths that are its own, the layers that come first, how large a group may be."""

from __future__ import annotations

import re

from mlbundle.errors import UsageError

RESERVED_FOLDER = "mlbundle"
BUNDLE_LAYER = f"{RESERVED_FOLDER}/bundle.json"
TABLE_LAYER = f"{RESERVED_FOLDER}/files.jsonl"
MODEL_PATH = f"{RESERVED_FOLDER}/model.yml"
FRAMEWORK_PATH = f"{RESERVED_FOLDER}/framework.yml"
DOCUMENT_LAYERS = (BUNDLE_LAYER, TABLE_LAYER, MODEL_PATH, FRAMEWORK_PATH)
"""Paths of the first four layers."""
FRAMEWORKS_FOLDER = f"{RESERVED_FOLDER}/frameworks"
"""Where the manifests of further frameworks lie; their layers follow the first four."""

MAX_FURTHER_FRAMEWORKS = 16
GROUP_BYTES = 64 << 20
"""The most that a group of small files takes as a tar."""

MAX_FURTHER_NAME = 64
FURTHER_NAME = r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*"
"""The pattern of the name of a further framework."""

_FURTHER_NAME = re.compile(FURTHER_NAME, re.ASCII)


def is_further_name(name: str) -> bool:
    """Return whether a framework of this name may be a further one: its name becomes part of a path and of a tag.

    It has up to 64 characters: ASCII letters and digits, and between two of them one of `._-`.
    """
    return len(name) <= MAX_FURTHER_NAME and _FURTHER_NAME.fullmatch(name) is not None


def further_framework_path(name: str) -> str:
    """Return the path of the manifest of a further framework; raises UsageError for a name that can't be in one."""
    if not is_further_name(name):
        raise UsageError(
            f"the framework name {ascii(name)[:80]} can't be that of a further framework",
            hint="up to 64 letters and digits, and between two of them one of . _ -",
        )
    return f"{FRAMEWORKS_FOLDER}/{name.lower()}.yml"
