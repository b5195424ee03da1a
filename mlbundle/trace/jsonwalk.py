"""Walks through a large JSON document: the elements of one long array come one at a time."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPACE = re.compile(r"[ \t\r\n]*")


class JSONBroken(ValueError):
    """The text is no JSON document; the message says where."""


def members(text: str, long_array: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of the object that a text is; those of `long_array` come one element at a time.

    Raises JSONBroken where the text is no object or ends in its middle; what came before has been yielded.
    """
    decode = json.JSONDecoder().raw_decode
    place = _skip(text, 0)
    place = _expect(text, place, "{")
    if text[place : place + 1] == "}":
        return
    while True:
        key, place = _value(decode, text, place)
        if not isinstance(key, str):
            raise JSONBroken(f"a key is no text at character {place}")
        place = _expect(text, _skip(text, place), ":")
        if key == long_array and text[place : place + 1] == "[":
            place = _skip(text, place + 1)
            while text[place : place + 1] != "]":
                element, place = _value(decode, text, place)
                yield key, element
                place = _skip(text, place)
                if text[place : place + 1] != "]":
                    place = _expect(text, place, ",")
            place = _skip(text, place + 1)
        else:
            value, place = _value(decode, text, place)
            yield key, value
            place = _skip(text, place)
        if text[place : place + 1] == "}":
            return
        place = _expect(text, place, ",")


def _value(decode: Any, text: str, place: int) -> tuple[Any, int]:
    try:
        value, end = decode(text, place)
    except (ValueError, RecursionError) as error:
        raise JSONBroken(f"no JSON at character {place}: {error}") from error
    return value, int(end)


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return place if found is None else found.end()


def _expect(text: str, place: int, character: str) -> int:
    if text[place : place + 1] != character:
        raise JSONBroken(f"{character!r} is expected at character {place}")
    return _skip(text, place + 1)
