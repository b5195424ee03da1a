"""A manifest as the checks see it: values by path, and the places for problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from mlbundle.manifest.nodes import Mark, Node, child_pointer, key_mark, locate
from mlbundle.manifest.problems import Problem

if TYPE_CHECKING:
    from mlbundle.manifest.problems import Severity
    from mlbundle.manifest.wording import Words

Path: TypeAlias = tuple[str | int, ...]


class View:
    """Reads a document that may be wrong in parts; what has not the wanted type is taken as absent.

    The schema has reported such values already, so the checks need not.
    """

    def __init__(self, document: dict[str, Any], root: Node, file: str, text: str) -> None:
        self.document = document
        self.root = root
        self.file = file
        self.problems: list[Problem] = []
        self._lines = text.splitlines()

    def get(self, *path: str | int) -> Any:
        """Return the value at a path, None when there is none."""
        value: Any = self.document
        for part in path:
            if isinstance(value, dict) and isinstance(part, str):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value

    def text(self, *path: str | int) -> str | None:
        """Return the text at a path, None when there is none."""
        value = self.get(*path)
        return value if isinstance(value, str) else None

    def count(self, *path: str | int) -> int:
        """Return the length of the list at a path, 0 when there is none."""
        value = self.get(*path)
        return len(value) if isinstance(value, list) else 0

    def keys(self, *path: str | int) -> list[str]:
        """Return the keys of the mapping at a path, none when there is none."""
        value = self.get(*path)
        return list(value) if isinstance(value, dict) else []

    def error(self, path: Path, message: str, expected: str | None = None, hint: str | None = None) -> None:
        """Add an error at the value of a path."""
        self._add("error", path, (message, expected, hint))

    def warning(self, path: Path, message: str, expected: str | None = None, hint: str | None = None) -> None:
        """Add a warning at the value of a path."""
        self._add("warning", path, (message, expected, hint))

    def error_at_key(self, path: Path, message: str, hint: str | None = None) -> None:
        """Add an error at the key that ends a path."""
        self._add("error", path, (message, None, hint), key_mark(self.root, path))

    def error_in_code(
        self, path: Path, message: str, place: tuple[int, int], hint: str | None = None
    ) -> None:
        """Add an error inside a block of code: `place` is line and column in the code, from 1, or 0 for the whole."""
        node = locate(self.root, path)
        line, column = place
        if node is None or not line:
            self.error(path, message, hint=hint)
        elif getattr(node, "style", "") != "|":
            self.error(path, f"{message} (line {line} of the code)", hint=hint)
        else:
            mark = self._mark_in_block(node.mark, str(self.get(*path)), line, column)
            self._add("error", path, (message, None, hint), mark)

    def _mark_in_block(self, header: Mark, code: str, line: int, column: int) -> Mark:
        """Return the place in the file of a place in a literal block, whose first line follows its header."""
        number = header.line + line
        raw = self._lines[number - 1] if number <= len(self._lines) else ""
        lines = code.splitlines()
        inner = lines[line - 1] if line <= len(lines) else ""
        indent = len(raw) - len(inner) if raw.endswith(inner) else 0
        return Mark(number, indent + max(column, 1))

    def _add(self, severity: Severity, path: Path, said: Words, mark: Mark | None = None) -> None:
        node = locate(self.root, path)
        place = mark or (node.mark if node is not None else Mark(1, 1))
        pointer = node.pointer if node is not None else "".join(child_pointer("", part) for part in path)
        self.problems.append(Problem(severity, self.file, place.line, place.column, pointer, *said))
