"""A sound model manifest to start from, and short ways to load texts."""

from __future__ import annotations

from typing import Any

from mlbundle.manifest.load import parse_framework, parse_model

HEX = "0123456789abcdef" * 4

MODEL = f"""\
name: digits
version: 1.0.0
framework: {{name: onnxruntime, version: 1.x}}
inputs:
  - type: image
    layer_name: input
    element_type: float32
    shape: [N, 1, 8, 8]
outputs:
  - type: classification
    layer_name: scores
model:
  graph_path: model.onnx
  checksum: sha256:{HEX}
"""


def with_text(old: str, new: str, text: str = MODEL) -> str:
    """The sound manifest with one place changed."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the text"
    return text.replace(old, new)


def model_problems(text: str) -> list[str]:
    """Every problem on a line: `12:5 error /pointer: message`."""
    return lines(parse_model(text.encode(), "model.yml"))


def framework_problems(text: str) -> list[str]:
    return lines(parse_framework(text.encode(), "framework.yml"))


def lines(loaded: Any) -> list[str]:
    return [f"{p.line}:{p.column} {p.severity} {p.pointer}: {p.message}" for p in loaded.problems]
