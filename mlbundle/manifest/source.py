"""Reads a YAML file into a tree of nodes, strictly, without constructing anything.

What is refused: more than 1 MiB, anything but UTF-8, control characters, more than one document, tags, anchors,
aliases, merge keys, repeated keys, keys that are no plain words, nesting deeper than 32 and more than 20,000
nodes. The parser's events are read one by one, so that a hostile file ends the reading early.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ReferenceNotFound, StorageFailed, UsageError
from mlbundle.manifest.nodes import Block, Entry, Listing, Mark, Node, Scalar, child_pointer
from mlbundle.manifest.problems import Problem, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 20_000

# What YAML 1.2 (production c-printable) does not allow in a file.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Source:
    """A file as a tree; `root` is None when the file is unusable, and then `problems` says why."""

    file: str
    text: str
    root: Block | None
    problems: tuple[Problem, ...]


class _Stop(Exception):
    """Reading can't go on; the reason is among the problems."""


def read_bytes(path: Path) -> bytes:
    """Return the content of a manifest, at most one byte more than is allowed.

    Raises ReferenceNotFound, UsageError (not a regular file) or StorageFailed.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(
                f"{path} is no regular file", hint="name a manifest, or a folder that holds model.yml"
            )
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ReferenceNotFound("there is no such manifest", where=str(path)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageFailed(f"can't read the manifest: {reason}", where=str(path)) from error


def parse_source(data: bytes, file: str) -> Source:
    """Return the tree of a YAML file; whatever is wrong becomes a problem, never an exception."""
    problems: list[Problem] = []
    text = ""
    root: Node | None = None
    try:
        text = _decode(data, file, problems)
        root = _Composer(file, problems).compose(text)
    except _Stop:
        return Source(file, text, None, tuple(problems))
    if isinstance(root, Block):
        return Source(file, text, root, tuple(problems))
    what = "is empty" if root is None or (isinstance(root, Scalar) and root.is_null) else "is no mapping"
    mark = Mark(1, 1) if root is None else root.mark
    problems.append(
        Problem("error", file, mark.line, mark.column, "", f"the file {what}", "a mapping of keys to values")
    )
    return Source(file, text, None, tuple(problems))


def _decode(data: bytes, file: str, problems: list[Problem]) -> str:
    if len(data) > MAX_BYTES:
        problems.append(
            Problem("error", file, 1, 1, "", "the file is too large", f"at most {MAX_BYTES:,} bytes")
        )
        raise _Stop
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        mark = _mark_at(before, len(before))
        message = f"the file is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}"
        problems.append(Problem("error", file, mark.line, mark.column, "", message, "UTF-8 text"))
        raise _Stop from None
    found = _FORBIDDEN.search(text)
    if found:
        mark = _mark_at(text, found.start())
        message = f"the character U+{ord(found.group()):04X} is not allowed"
        problems.append(Problem("error", file, mark.line, mark.column, "", message, "printable text"))
        raise _Stop
    return text


def _mark_at(text: str, offset: int) -> Mark:
    lines = _LINE_END.split(text[:offset])
    return Mark(len(lines), len(lines[-1]) + 1)


class _Composer:
    """Makes the tree of the parser's events and collects the problems of the file itself."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self._file = file
        self._problems = problems
        self._nodes = 0
        self._events: Iterator[Any] = iter(())

    def compose(self, text: str) -> Node | None:
        """Return the only document's root; None when there is no document. Raises _Stop."""
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events = yaml.parse(text, Loader=loader)
        try:
            return self._documents()
        except yaml.MarkedYAMLError as error:
            place = error.problem_mark or error.context_mark
            mark = Mark(1, 1) if place is None else Mark(place.line + 1, place.column + 1)
            self._add(
                mark,
                "",
                f"the file is no YAML: {error.problem or error.context}",
                hint=_syntax_hint(error, text, mark),
            )
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self._add(Mark(1, 1), "", f"the file is no YAML: {reason}")
        raise _Stop

    def _add(
        self, mark: Mark, pointer: str, message: str, expected: str | None = None, hint: str | None = None
    ) -> None:
        self._problems.append(
            Problem("error", self._file, mark.line, mark.column, pointer, message, expected, hint)
        )

    def _documents(self) -> Node | None:
        import yaml

        root: Node | None = None
        seen = False
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if event.tags:
                    self._add(_mark(event), "", "tag directives (%TAG) are not allowed")
                if seen:
                    self._add(
                        _mark(event), "", "the file holds a second document", "one document", "remove '---'"
                    )
                    raise _Stop
                seen = True
                root = self._node(next(self._events), "", 1)
        return root

    def _node(self, event: Any, pointer: str, depth: int) -> Node:
        import yaml

        mark = _mark(event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._add(mark, pointer, "the file has too many values", f"at most {MAX_NODES:,}")
            raise _Stop
        if depth > MAX_DEPTH:
            self._add(mark, pointer, "the file is nested too deeply", f"at most {MAX_DEPTH} levels")
            raise _Stop
        if event.anchor is not None:
            kind = "alias" if isinstance(event, yaml.AliasEvent) else "anchor"
            self._add(
                mark, pointer, f"an {kind} ({shown(event.anchor)}) is not allowed", hint="write the value out"
            )
        if isinstance(event, yaml.AliasEvent):
            return Scalar("", "", mark, pointer)
        if event.tag is not None:
            self._add(mark, pointer, f"a tag ({shown(event.tag)}) is not allowed", hint="remove the tag")
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(event.value, event.style or "", mark, pointer)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(mark, pointer, depth)
        return self._mapping(mark, pointer, depth)

    def _sequence(self, mark: Mark, pointer: str, depth: int) -> Listing:
        import yaml

        items: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, child_pointer(pointer, len(items)), depth + 1))
        return Listing(tuple(items), mark, pointer)

    def _mapping(self, mark: Mark, pointer: str, depth: int) -> Block:
        import yaml

        entries: dict[str, Entry] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, pointer, depth + 1)
            word = key.text if isinstance(key, Scalar) else "?"
            value = self._node(next(self._events), child_pointer(pointer, word), depth + 1)
            if self._key_is_good(key, pointer, entries):
                entries[word] = Entry(word, key.mark, value)
        return Block(tuple(entries.values()), mark, pointer)

    def _key_is_good(self, key: Node, pointer: str, entries: dict[str, Entry]) -> bool:
        if not isinstance(key, Scalar):
            self._add(key.mark, pointer, "a list or a mapping can't be a key", "a word")
        elif key.text == "<<" and not key.style:
            self._add(
                key.mark,
                child_pointer(pointer, "<<"),
                "a merge key (<<) is not allowed",
                hint="write the keys out",
            )
        elif key.text in entries:
            first = entries[key.text].mark.line
            self._add(
                key.mark,
                child_pointer(pointer, key.text),
                f"the key {shown(key.text)} is repeated; it stands on line {first} already",
                hint="remove one of the two",
            )
        else:
            return True
        return False


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _syntax_hint(error: Any, text: str, mark: Mark) -> str | None:
    """Say what the most frequent slips look like."""
    lines = _LINE_END.split(text)
    if "\t" in lines[mark.line - 1][: mark.column] if mark.line <= len(lines) else False:
        return "indent with spaces, not with tabs"
    problem = str(error.problem or "")
    if "could not find expected ':'" in problem or "mapping values are not allowed" in problem:
        return "check the indentation and the space after ':'"
    return None
