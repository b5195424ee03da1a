"""Brings a model manifest as people write it into the form of the schema; every node keeps its place.

Two things are done. A step whose operator has no value takes the keys beside it as its parameters, as the
MLModelScope paper prints its steps. `[[code]]`, the paper's stand-in for Python code, is taken out with a warning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlbundle.manifest.nodes import Block, Entry, Listing, Node, Scalar, child_pointer
from mlbundle.manifest.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

CODE_SIDES = ("preprocess", "postprocess")
_TENSORS = ("inputs", "outputs")


def normalise_model(root: Block, file: str) -> tuple[Block, list[Problem]]:
    """Return the tree in the form of the schema, and warnings about what was taken out."""
    warnings: list[Problem] = []
    kept = []
    for entry in root.entries:
        if entry.key in CODE_SIDES and _is_placeholder(entry.value):
            warnings.append(_placeholder_warning(entry, file))
        else:
            kept.append(entry)
    block = replace(root, entries=tuple(kept))
    block = _tensors(block)
    return _replace_value(block, "variants", lambda variants: _each(variants, _variant)), warnings


def _is_placeholder(node: Node) -> bool:
    """Whether a value is a list of one list of one word: `[[code]]`."""
    for _level in range(2):
        if not isinstance(node, Listing) or len(node.items) != 1:
            return False
        node = node.items[0]
    return isinstance(node, Scalar)


def _placeholder_warning(entry: Entry, file: str) -> Problem:
    mark = entry.value.mark
    message = f"{entry.key} is only a placeholder and counts as absent"
    hint = "write the Python code, or remove the key"
    return Problem("warning", file, mark.line, mark.column, entry.pointer, message, hint=hint)


def _variant(node: Node) -> Node:
    return _tensors(node) if isinstance(node, Block) else node


def _tensors(block: Block) -> Block:
    for side in _TENSORS:
        block = _replace_value(block, side, lambda tensors: _each(tensors, _tensor))
    return block


def _tensor(node: Node) -> Node:
    if not isinstance(node, Block):
        return node
    return _replace_value(node, "steps", lambda steps: _each(steps, _step))


def _step(node: Node) -> Node:
    if not isinstance(node, Block) or not node.entries:
        return node
    first, *others = node.entries
    if not isinstance(first.value, Scalar) or not first.value.is_null:
        return node
    pointer = child_pointer(node.pointer, first.key)
    # Without keys beside it the operator simply has no parameters; positions stay those of the file.
    mark = others[0].mark if others else first.value.mark
    parameters = Block(tuple(others), mark, pointer)
    return replace(node, entries=(replace(first, value=parameters),))


def _each(node: Node, change: Callable[[Node], Node]) -> Node:
    if not isinstance(node, Listing):
        return node
    return replace(node, items=tuple(change(item) for item in node.items))


def _replace_value(block: Block, key: str, change: Callable[[Node], Node]) -> Block:
    entries = tuple(replace(e, value=change(e.value)) if e.key == key else e for e in block.entries)
    return replace(block, entries=entries)
