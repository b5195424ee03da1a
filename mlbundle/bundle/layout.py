"""Where things stand in a bundle: paths that are its own, the first four layers, how large a group may be."""

from __future__ import annotations

RESERVED_FOLDER = "mlbundle"
BUNDLE_LAYER = f"{RESERVED_FOLDER}/bundle.json"
TABLE_LAYER = f"{RESERVED_FOLDER}/files.jsonl"
MODEL_PATH = f"{RESERVED_FOLDER}/model.yml"
FRAMEWORK_PATH = f"{RESERVED_FOLDER}/framework.yml"
DOCUMENT_LAYERS = (BUNDLE_LAYER, TABLE_LAYER, MODEL_PATH, FRAMEWORK_PATH)
"""Paths of the first four layers."""

GROUP_BYTES = 64 << 20
"""The most that a group of small files takes as a tar."""
