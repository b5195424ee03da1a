"""Keys that a user gives to what the UI can do: `[keys]` of the settings, checked before anything is drawn."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import KEY_NAME_REPLACEMENTS, Keys

from mlbundle.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlbundle.config import Settings

# Terminals send the same for these and for other keys, or keep them: ctrl+i is tab, ctrl+m enter, ctrl+h backspace,
# ctrl+[ escape; ctrl+s and ctrl+q stop and resume the output, ctrl+z the program, ctrl+c is how to leave.
EATEN = frozenset(
    f"ctrl+{key}" for key in ("enter", "i", "m", "h", "j", "s", "q", "z", "c", "left_square_bracket", "[")
)
_MODIFIED = re.compile(r"(?P<modifiers>(?:(?:ctrl|alt|shift|super|hyper|meta)\+)*)(?P<key>.+)", re.DOTALL)
_FUNCTION_KEY = re.compile(r"f([1-9]|1\d|2[0-4])")


def all_ids() -> dict[str, str]:
    """Return id -> keys of everything that can be done anywhere in the UI. Imports all of it."""
    import mlbundle_tui

    for module in pkgutil.walk_packages(mlbundle_tui.__path__, "mlbundle_tui."):
        importlib.import_module(module.name)
    return {
        binding.id: binding.key
        for node in sorted(_nodes(), key=_name)
        for binding in _bindings(node)
        if binding.id
    }


def key_lines(settings: Settings) -> list[str]:
    """Return a line for everything that can have keys: its id, the keys that it has, and that they were set.

    Raises UsageError for settings that won't do.
    """
    own = all_ids()
    given = check_keys(settings.keys, settings.origins.get("keys", ""))
    width = max(map(len, own))
    return [
        f"{name:<{width}}  {given.get(name, keys)}{'  (set)' * (name in given)}"
        for name, keys in sorted(own.items())
    ]


def check_keys(keys: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the keys that were set, as the UI takes them.

    Raises UsageError for what the UI can't do, for what is no key, and for keys that never reach a program.
    """
    if not keys:
        return {}
    known = all_ids()
    for name, text in keys.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
            raise UsageError(f"there is nothing called {name!r} to give keys to", where=where, hint=hint)
        for key in _split(text):
            _check_key(name, key, where)
    _check_together(keys, where)
    return dict(keys)


def _split(text: str) -> list[str]:
    return [key.strip() for key in text.split(",")]


def _check_together(keys: Mapping[str, str], where: str) -> None:
    """Within one screen a key does one thing; one that is the UI's own for another thing is taken from it."""
    given = Counter((name.partition(".")[0], key) for name, text in keys.items() for key in set(_split(text)))
    for (screen, key), times in given.items():
        if times > 1:
            names = [
                name for name, text in keys.items() if name.startswith(f"{screen}.") and key in _split(text)
            ]
            raise UsageError(f"{key!r} can't be for {' and '.join(names)} at once", where=where)


def _check_key(name: str, key: str, where: str) -> None:
    if key in EATEN:
        raise UsageError(
            f"{key!r} for {name!r} never reaches a program: terminals take it for another key, or for themselves",
            where=where,
            hint="take a letter, a function key, or ctrl with another letter",
        )
    match = _MODIFIED.fullmatch(key)
    if match is None or not _is_key(match["key"]):
        raise UsageError(
            f"{key!r} for {name!r} is no key", where=where, hint='like "g", "f6", "ctrl+g", "enter"'
        )


def _is_key(key: str) -> bool:
    if len(key) == 1:
        return key.isprintable()
    if key in {str(member.value) for member in Keys} or _FUNCTION_KEY.fullmatch(key):
        return True
    # Signs are called as in Unicode, some by a shorter word.
    if key in KEY_NAME_REPLACEMENTS.values():
        return True
    try:
        unicodedata.lookup(key.replace("_", " ").upper())
    except KeyError:
        return False
    return key == key.lower()


def _nodes() -> Iterator[type[DOMNode]]:
    waiting: list[type[DOMNode]] = [DOMNode]
    while waiting:
        node = waiting.pop()
        waiting += node.__subclasses__()
        if node.__module__.startswith("mlbundle_tui."):
            yield node


def _bindings(node: type[DOMNode]) -> Iterator[Binding]:
    yield from (entry for entry in node.__dict__.get("BINDINGS", ()) if isinstance(entry, Binding))


def _name(node: type[DOMNode]) -> str:
    return f"{node.__module__}.{node.__qualname__}"
