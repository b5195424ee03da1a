"""What a validator found, as values: one error for each mistake, alternatives narrowed to what was meant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from mlbundle.resources import load_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

Schema: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class SchemaError:
    """A value that breaks one keyword of the schema.

    `rule` is the keyword's value, `schema` the schema it stands in, `path` the way from the root to the value.
    `depth` is the number of steps from where an alternative began; `inner` holds what each alternative found.
    """

    keyword: str
    rule: Any
    value: Any
    schema: Schema
    path: tuple[str | int, ...]
    depth: int
    about_key: bool
    inner: tuple[tuple[SchemaError, ...], ...] = ()

    @property
    def is_type(self) -> bool:
        """Whether the value has a wrong type."""
        return self.keyword == "type"

    def missing_keys(self) -> list[str]:
        """Return the keys that the schema requires and that are absent, for `required`."""
        return [key for key in self.rule if key not in self.value]

    def unknown_keys(self) -> list[str]:
        """Return the keys that the schema does not know, for `additionalProperties`."""
        known = self.schema.get("properties", {})
        patterns = self.schema.get("patternProperties", {})
        return [k for k in self.value if k not in known and not any(re.search(p, k) for p in patterns)]


def schema_errors(document: Any, schema: str) -> list[SchemaError]:
    """Return every way in which a document breaks the schema of this name, each mistake once."""
    found: list[SchemaError] = []
    for error in _convert(_validator(schema).iter_errors(document)):
        found += _narrow(error)
    mistyped = {error.path for error in found if error.is_type}
    return [error for error in found if error.is_type or error.about_key or error.path not in mistyped]


@cache
def _validator(schema: str) -> Validator:
    from jsonschema import Draft202012Validator

    validator: Validator = Draft202012Validator(load_schema(schema))
    return validator


def _convert(errors: Iterable[ValidationError]) -> list[SchemaError]:
    return [
        SchemaError(
            keyword=str(error.validator),
            rule=error.validator_value,
            value=error.instance,
            schema=error.schema if isinstance(error.schema, dict) else {},
            path=tuple(error.absolute_path),
            depth=len(error.path),
            about_key="propertyNames" in error.absolute_schema_path,
            inner=_branches(error),
        )
        for error in errors
    ]


def _branches(error: ValidationError) -> tuple[tuple[SchemaError, ...], ...]:
    """Return what each alternative of an `anyOf` found, in the order of the schema."""
    branches: dict[Any, list[ValidationError]] = {}
    for inner in error.context or ():
        branches.setdefault(inner.schema_path[0], []).append(inner)
    return tuple(tuple(_convert(branch)) for branch in branches.values())


def _narrow(error: SchemaError) -> list[SchemaError]:
    """Return the errors of the alternative that was probably meant: the only one whose type fits."""
    fitting = [branch for branch in error.inner if not any(e.is_type and e.depth == 0 for e in branch)]
    if len(fitting) != 1:
        return [error]
    return [narrowed for inner in fitting[0] for narrowed in _narrow(inner)]
