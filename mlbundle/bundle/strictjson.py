"""JSON from strangers: capped, no duplicate keys, no NaN, no huge numbers, no surprises in types.

The stock parser takes the last of two equal keys without a word, turns 1e999 into infinity and dies of
recursion at about a thousand brackets.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_INTEGER = (1 << 63) - 1
_MAX_DIGITS = 20

# A whole string, even an unterminated one, or a bracket: possessive, so that no input takes quadratic time.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)|[\[\]{}]', re.DOTALL)


class _Refused(ValueError):
    pass


def loads(data: bytes, *, where: str, max_bytes: int = MAX_BYTES) -> Any:
    """Parse strict JSON (RFC 8259 without duplicate names).

    Raises BundleCorrupt, with `where`, for more than `max_bytes`, bytes that are not UTF-8, nesting deeper
    than 32, duplicate keys, NaN and infinities, -0, integers beyond 64 bits, lone surrogates, trailing text.
    """
    if len(data) > max_bytes:
        raise BundleCorrupt(f"a document of {len(data)} bytes is over the cap of {max_bytes}", where=where)
    try:
        _check_depth(data)
        text = data.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_float,
        )
        # A lone surrogate can be written as an escape but never as UTF-8.
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise BundleCorrupt(f"not acceptable as JSON: {error}"[:200], where=where) from None
    return value


def _check_depth(data: bytes) -> None:
    depth = 0
    for match in _TOKEN.finditer(data):
        token = data[match.start()]
        if token in b"[{":
            depth += 1
        elif token in b"]}":
            depth -= 1
        if depth > MAX_DEPTH:
            raise _Refused(f"nested deeper than {MAX_DEPTH}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Refused(f"the key {ascii(twice)[:60]} stands twice")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is no JSON")


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS or abs(int(text)) > MAX_INTEGER:
        raise _Refused(f"the number {text[:24]} is beyond 64 bits")
    if text == "-0":
        raise _Refused("-0 is written as 0")
    return int(text)


def _float(text: str) -> NoReturn:
    raise _Refused(f"{text[:24]} is no whole number")


class Fields:
    """Typed access to the members of a JSON object; every surprise is a BundleCorrupt that says where.

    `where` is a file name with a JSON pointer; `allowed` lists the only keys the object may have.
    """

    __slots__ = ("_value", "where")

    def __init__(self, value: Any, where: str, allowed: frozenset[str] | None = None) -> None:
        self.where = where
        if not isinstance(value, dict):
            self._fail("", "an object", value)
        self._value: dict[str, Any] = value
        if allowed is not None:
            self.only(allowed)

    def only(self, allowed: frozenset[str]) -> None:
        """Check that the object has no other keys than these."""
        unknown = sorted(set(self._value) - allowed)
        if unknown:
            raise BundleCorrupt(
                f"unknown key {ascii(unknown[0])[:60]}",
                where=self.where,
                hint="it was written by a newer version, or by something else than mlbundle",
            )

    def _fail(self, key: str, expected: str, value: Any) -> NoReturn:
        where = f"{self.where}/{key}" if key else self.where
        raise BundleCorrupt(f"{expected} is expected, not {ascii(value)[:60]}", where=where)

    def has(self, key: str) -> bool:
        """Return whether the object has this key."""
        return key in self._value

    def text(self, key: str) -> str:
        """Return a string."""
        value = self._value.get(key)
        if not isinstance(value, str):
            self._fail(key, "a string", value)
        return value

    def constant(self, key: str, expected: Any) -> None:
        """Check that the member is exactly `expected`."""
        value = self._value.get(key)
        if type(value) is not type(expected) or value != expected:
            self._fail(key, ascii(expected), value)

    def integer(self, key: str, *, maximum: int = MAX_INTEGER) -> int:
        """Return a whole number from 0 to `maximum`."""
        value = self._value.get(key)
        if type(value) is not int or not 0 <= value <= maximum:
            self._fail(key, f"a whole number from 0 to {maximum}", value)
        return value

    def object(self, key: str, allowed: frozenset[str] | None = None) -> Fields:
        """Return an object."""
        return Fields(self._value.get(key), f"{self.where}/{key}", allowed)

    def array(self, key: str, *, maximum: int) -> list[Any]:
        """Return a list of at most `maximum` values."""
        value = self._value.get(key)
        if not isinstance(value, list) or len(value) > maximum:
            self._fail(key, f"a list of at most {maximum}", value)
        return value

    def objects(self, key: str, allowed: frozenset[str] | None = None, *, maximum: int) -> Iterator[Fields]:
        """Yield the objects of a list."""
        for index, value in enumerate(self.array(key, maximum=maximum)):
            yield Fields(value, f"{self.where}/{key}/{index}", allowed)
