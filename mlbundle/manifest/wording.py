"""Says in words what is wrong with a value; the nouns are the titles of the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from mlbundle.manifest.nodes import Node, Scalar
from mlbundle.manifest.problems import did_you_mean, listing, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlbundle.manifest.schema_errors import SchemaError

# Message, what was expected, hint.
Words: TypeAlias = tuple[str, str | None, str | None]

OPERATOR = "Operator"
_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping of keys to values",
    "null": "nothing",
}
_BOOLEANS_OF_OLD = frozenset({"yes", "no", "on", "off", "y", "n"})
_LIMITS = {
    "minimum": ("too small", "at least"),
    "maximum": ("too large", "at most"),
}
_MOST_LISTED = 20


def words(error: SchemaError, node: Node | None) -> Words:
    """Return message, what was expected and a hint for an error about a value."""
    value, rule, noun = error.value, error.rule, title(error)
    is_none = f"{shown(value)} is no {noun}"
    # What has a wrong type is named by its key: nobody would take it for what the title says.
    subject = error.path[-1] if error.path and isinstance(error.path[-1], str) else noun
    cannot = f"{subject} can't be {shown(value)}"
    match error.keyword:
        case "type":
            types = [rule] if isinstance(rule, str) else list(rule)
            return cannot, _types(types), _type_hint(value, types, node)
        case "enum":
            known = [str(word) for word in rule]
            return is_none, one_of(known), did_you_mean(str(value), known)
        case "not" if rule == {"const": 0}:
            return f"{subject} can't be zero", "any other number", None
        case "pattern":
            return is_none, _example(error), None
        case "anyOf":
            return _no_alternative(error, (is_none, cannot), node)
        case _:
            return _limit(error, noun)


def title(error: SchemaError) -> str:
    """Return what the schema calls the value, in lower case."""
    text = str(error.schema.get("title", "valid value"))
    return text if text.isupper() else text[:1].lower() + text[1:]


def one_of(known: Sequence[str]) -> str | None:
    """Return the words that would have been right, None when there are none to list."""
    if not known:
        return None
    rest = len(known) - _MOST_LISTED
    return listing(known[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _limit(error: SchemaError, noun: str) -> Words:
    value, rule = error.value, error.rule
    if error.keyword in _LIMITS:
        what, bound = _LIMITS[error.keyword]
        return f"{shown(value)} is {what} for {noun}", f"{bound} {rule}", None
    bound = "at least" if error.keyword.startswith("min") else "at most"
    if not value:
        return f"{noun} is empty", None, None
    if isinstance(value, str):
        return f"{noun} has {len(value)} characters", f"{bound} {rule}", None
    hint = "begin each operator with '-'" if error.schema.get("title") == OPERATOR else None
    return f"{noun} has {len(value)} entries", f"{bound} {rule}", hint


def _no_alternative(error: SchemaError, messages: tuple[str, str], node: Node | None) -> Words:
    is_none, cannot = messages
    inner = [e for branch in error.inner for e in branch]
    if all(e.keyword == "required" for e in inner):
        keys = " or ".join(shown(key) for e in inner for key in e.missing_keys())
        return f"one of the keys {keys} is missing", None, None
    types = [e.rule for e in inner if e.is_type and e.depth == 0]
    if not types:
        return is_none, _example(error), None
    return cannot, _types(types), _type_hint(error.value, types, node)


def _types(names: Sequence[str]) -> str | None:
    return " or ".join(_TYPES[name] for name in dict.fromkeys(names)) or None


def _example(error: SchemaError) -> str | None:
    examples = error.schema.get("examples", [])
    return f"something like {shown(examples[0])}" if examples else None


def _type_hint(value: Any, types: Sequence[str], node: Node | None) -> str | None:
    if value is None:
        return "leave the key out if there is nothing to say"
    if not isinstance(value, str):
        return None
    if "boolean" in types and value.lower() in _BOOLEANS_OF_OLD:
        return "write true or false"
    if (
        {"integer", "number", "boolean"} & set(types)
        and isinstance(node, Scalar)
        and node.style in {"'", '"'}
    ):
        return "remove the quotes"
    if "object" in types and ":" in value:
        return "put a space after ':'"
    return None
