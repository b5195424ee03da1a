"""The tree of a YAML file: raw text, and for every node where it stands and its JSON pointer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

NULL_TEXTS = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the file: line and column, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value as written; `style` is '' for plain, else `'`, `"`, `|` or `>`."""

    text: str
    style: str
    mark: Mark
    pointer: str

    @property
    def is_null(self) -> bool:
        """Whether nothing stands here: an empty plain scalar, `~` or `null`."""
        return not self.style and self.text in NULL_TEXTS


@dataclass(frozen=True, slots=True)
class Listing:
    """A YAML sequence."""

    items: tuple[Node, ...]
    mark: Mark
    pointer: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping with its value; `pointer` is the value's."""

    key: str
    mark: Mark
    value: Node

    @property
    def pointer(self) -> str:
        """Return the JSON pointer of the entry."""
        return self.value.pointer


@dataclass(frozen=True)
class Block:
    """A YAML mapping."""

    entries: tuple[Entry, ...]
    mark: Mark
    pointer: str

    @cached_property
    def _by_key(self) -> dict[str, Entry]:
        return {entry.key: entry for entry in self.entries}

    def entry(self, key: str) -> Entry | None:
        """Return the entry of a key, or None."""
        return self._by_key.get(key)


Node: TypeAlias = Scalar | Listing | Block


def child_pointer(parent: str, part: str | int) -> str:
    """Return the JSON pointer of a child (RFC 6901: `~` is `~0`, `/` is `~1`)."""
    return f"{parent}/{str(part).replace('~', '~0').replace('/', '~1')}"


def locate(root: Node, path: Sequence[str | int]) -> Node | None:
    """Return the node at a path of keys and positions, or None."""
    node: Node | None = root
    for part in path:
        if isinstance(node, Block) and isinstance(part, str):
            entry = node.entry(part)
            node = None if entry is None else entry.value
        elif isinstance(node, Listing) and isinstance(part, int) and 0 <= part < len(node.items):
            node = node.items[part]
        else:
            return None
    return node


def key_mark(root: Node, path: Sequence[str | int]) -> Mark | None:
    """Return where the key stands that ends a path, or None."""
    parent = locate(root, path[:-1]) if path else None
    if isinstance(parent, Block):
        entry = parent.entry(str(path[-1]))
        return None if entry is None else entry.mark
    return None
