"""What a line of filter means: words that must occur, and `field:value` for the fields that bundles have."""

from __future__ import annotations

import re
from dataclasses import dataclass

FIELDS = ("task", "framework", "arch", "accelerator", "state", "where")
"""The fields, each a column of the shelf; a value is any part of what stands there, whatever the case."""

_WORD = re.compile(r'(?:(?P<field>[a-z]+)[:=])?(?:"(?P<quoted>[^"]*)"?|(?P<bare>\S+))')
_MAX_CHARACTERS, _MAX_WORDS = 1000, 20


@dataclass(frozen=True)
class BundleFilter:
    """Words and (field, value) pairs, in lower case; all must fit."""

    words: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def wants_manifests(self) -> bool:
        """Whether an answer needs what only the manifests say."""
        return any(field in {"task", "arch", "accelerator", "state"} for field, _ in self.fields)

    @property
    def wants_states(self) -> bool:
        """Whether an answer needs to know what can run here."""
        return any(field == "state" for field, _ in self.fields)

    def without_state(self) -> BundleFilter:
        """Return the filter that finds the bundles whose state is to be known."""
        return BundleFilter(self.words, tuple(pair for pair in self.fields if pair[0] != "state"))

    def conditions(self) -> tuple[list[str], list[str]]:
        """Return conditions of SQL over the shelf's columns, and their parameters."""
        conditions = [f'instr("{name}", ?) > 0' for name in ["search"] * len(self.words)]
        conditions += [f'instr("{name}", ?) > 0' for name, _ in self.fields]
        return conditions, [*self.words, *(value for _, value in self.fields)]


def parse_filter(text: str) -> BundleFilter:
    """Return what a line means; never raises. `image task:"image classification" framework:torch`.

    A field that there is not is a word like any other; a field without a value is still being typed.
    """
    words, fields = [], []
    for match in list(_WORD.finditer(text[:_MAX_CHARACTERS].casefold()))[:_MAX_WORDS]:
        value = match["quoted"] if match["quoted"] is not None else match["bare"]
        if match["field"] in FIELDS:
            fields.append((match["field"], value))
        elif match["field"] is None and value.removesuffix(":") in FIELDS and value.endswith(":"):
            continue
        elif value:
            words.append(match[0].replace('"', ""))
    return BundleFilter(tuple(word for word in words if word), tuple(pair for pair in fields if pair[1]))
