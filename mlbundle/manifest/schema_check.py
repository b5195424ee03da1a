"""Checks a document against its JSON Schema and says what is wrong in words, with positions.

A misspelt key is not reported as missing as well.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from mlbundle.manifest.nodes import Mark, Node, child_pointer, key_mark, locate
from mlbundle.manifest.problems import MOST_PROBLEMS, Problem, did_you_mean, near_miss, shown
from mlbundle.manifest.schema_errors import SchemaError, schema_errors
from mlbundle.manifest.wording import OPERATOR, one_of, title, words
from mlbundle.resources import load_schema

if TYPE_CHECKING:
    from mlbundle.manifest.wording import Words


def check_schema(document: Any, root: Node, schema: str, file: str) -> list[Problem]:
    """Return every way in which a document breaks the schema of this name; `root` knows the positions."""
    checker = _Checker(root, file)
    for error in schema_errors(document, schema):
        checker.add(error)
    return checker.problems


class _Checker:
    def __init__(self, root: Node, file: str) -> None:
        self._root = root
        self._file = file
        self.problems: list[Problem] = []

    def add(self, error: SchemaError) -> None:
        """Add the problems that an error of the schema stands for."""
        if error.about_key:
            self._bad_key(error)
        elif error.keyword == "additionalProperties":
            self._unknown_keys(error)
        elif error.keyword == "required":
            self._missing_keys(error)
        else:
            self._put(error.path, words(error, locate(self._root, error.path)))

    def _put(self, path: tuple[str | int, ...], said: Words, mark: Mark | None = None) -> None:
        node = locate(self._root, path)
        pointer = node.pointer if node is not None else "".join(child_pointer("", part) for part in path)
        place = mark or (node.mark if node is not None else Mark(1, 1))
        self.problems.append(Problem("error", self._file, place.line, place.column, pointer, *said))

    def _unknown_keys(self, error: SchemaError) -> None:
        known = list(error.schema.get("properties", {}))
        free = [key for key in known if key not in error.value]
        what = "operator" if error.schema.get("title") == OPERATOR else "key"
        for number, key in enumerate(error.unknown_keys()):
            path = (*error.path, key)
            # Looking for what was meant takes time, and a flood of unknown keys is no typing error.
            hint = did_you_mean(key, free) if number < MOST_PROBLEMS else None
            hint = hint or _misplaced_operator(error, key)
            self._put(path, (f"unknown {what} {shown(key)}", one_of(known), hint), key_mark(self._root, path))

    def _missing_keys(self, error: SchemaError) -> None:
        properties = error.schema.get("properties", {})
        free = [key for key in properties if key not in error.value]
        # The author wrote it, but not quite so: the unknown key is reported with what was meant.
        unknown = islice((key for key in error.value if key not in properties), MOST_PROBLEMS)
        misspelt = {near_miss(key, free) for key in unknown}
        for key in error.missing_keys():
            if key not in misspelt:
                described = properties.get(key, {}).get("title")
                expected = None if described is None else f"{key}: {described.lower()}"
                self._put(error.path, (f"the key {shown(key)} is missing", expected, None))

    def _bad_key(self, error: SchemaError) -> None:
        path = (*error.path, error.value)
        known = error.schema.get("enum", [])
        said = (f"{shown(error.value)} is no {title(error)}", one_of(known), did_you_mean(error.value, known))
        self._put(path, said, key_mark(self._root, path))


def _misplaced_operator(error: SchemaError, key: str) -> str | None:
    operators = load_schema("model")["$defs"]["step"]["properties"]
    if key in operators and str(error.schema.get("title", "")).startswith("Parameters of"):
        return f"begin a step of its own: '- {key}:'"
    return None
