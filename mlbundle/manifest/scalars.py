"""Turns nodes into JSON values: the schema at a place decides what a plain scalar there means.

Where the schema wants text and no number, the raw text stays (`version: 1.10`, `NO`, `1e3`, a date). Where it wants
a number, the decimal forms of YAML 1.2's core schema are numbers. Where it does not say, only what can be written
back unchanged is a number; nothing an author wrote is lost.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from mlbundle.manifest.nodes import Listing, Node, Scalar

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_PLAIN_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+\Z")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_LARGEST = 2**63
_LARGEST_EXACT_FLOAT = 2**53
_MOST_DIGITS = 400

Schema = dict[str, Any]


def resolve(node: Node, schema: Mapping[str, Any]) -> Any:
    """Return a node and all below it as JSON-ready values, guided by a JSON Schema (draft 2020-12)."""
    return _Resolver(schema).value(node, [dict(schema)])


class _Resolver:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def value(self, node: Node, schemas: list[Schema]) -> Any:
        """Return the value of a node where any of `schemas` may apply."""
        options = self._flatten(schemas)
        if isinstance(node, Scalar):
            return _scalar(node, _types(options))
        if isinstance(node, Listing):
            return [self.value(item, _sub(options, "items")) for item in node.items]
        return {e.key: self.value(e.value, _of_key(options, e.key)) for e in node.entries}

    def _flatten(self, schemas: list[Schema]) -> list[Schema]:
        """Return the schemas with references and alternatives put side by side."""
        found: list[Schema] = []
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            found.append(schema)
            if "$ref" in schema:
                waiting.append(self._referenced(schema["$ref"]))
            for word in ("anyOf", "oneOf", "allOf"):
                waiting += schema.get(word, [])
        return found

    def _referenced(self, reference: str) -> Schema:
        target: Any = self._root
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
        result: Schema = target
        return result


def _sub(options: list[Schema], word: str) -> list[Schema]:
    return [o[word] for o in options if isinstance(o.get(word), dict)]


def _of_key(options: list[Schema], key: str) -> list[Schema]:
    found: list[Schema] = []
    for option in options:
        if key in option.get("properties", {}):
            found.append(option["properties"][key])
            continue
        patterns = [s for p, s in option.get("patternProperties", {}).items() if re.search(p, key)]
        found += patterns or _sub([option], "additionalProperties")
    return found


def _types(options: list[Schema]) -> frozenset[str]:
    types: set[str] = set()
    for option in options:
        stated = option.get("type", [])
        types.update([stated] if isinstance(stated, str) else stated)
    return frozenset(types)


def _scalar(node: Scalar, types: frozenset[str]) -> Any:
    text = node.text
    if node.style:
        return text
    if node.is_null:
        return None
    if not types:
        return _free(text)
    if types & {"number", "integer"}:
        number = _number(text, types)
        if number is not None and ("string" not in types or str(number) == text):
            return number
    if "string" in types:
        return text
    return _BOOLEANS.get(text, text)


def _free(text: str) -> Any:
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.match(text) and str(value := int(text)) == text and abs(value) < _LARGEST:
        return value
    if len(text) <= _MOST_DIGITS and _PLAIN_FLOAT.match(text) and repr(number := float(text)) == text:
        return number
    return text


def _number(text: str, types: frozenset[str]) -> int | float | None:
    """Return the number of a text, None when it is none: too long, not finite, or leading zeros."""
    if _INTEGER.match(text):
        value = int(text)
        return value if -_LARGEST <= value < _LARGEST else None
    digits = text.lstrip("+-")
    if len(text) > _MOST_DIGITS or not _FLOAT.match(text) or re.match(r"0[0-9]", digits) or digits.isdigit():
        return None
    number = float(text)
    if not math.isfinite(number):
        return None
    if "number" not in types and number.is_integer() and abs(number) <= _LARGEST_EXACT_FLOAT:
        return int(number)
    return number
