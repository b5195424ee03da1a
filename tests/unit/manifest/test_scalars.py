"""What a plain scalar means is decided by the schema at its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.manifest.scalars import resolve
from mlbundle.manifest.source import parse_source


def value(text: str, schema: dict[str, Any]) -> Any:
    source = parse_source(f"k: {text}\n".encode(), "f.yml")
    assert source.root is not None, source.problems
    return resolve(source.root, {"type": "object", "properties": {"k": schema}})["k"]


@pytest.mark.parametrize(
    "text", ["1.10", "NO", "1e3", "2026-11-20", "0x10", "007", "true", "1_000", "12:30:45", ".inf"]
)
def test_text_stays_text(text: str) -> None:
    assert value(text, {"type": "string"}) == text


@pytest.mark.parametrize("text", ["", "~", "null", "Null", "NULL"])
@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "number"}, {}])
def test_nothing_is_null(text: str, schema: dict[str, Any]) -> None:
    assert value(text, schema) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("-7", -7),
        ("+3", 3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("2.", 2.0),
        ("-1.5E-3", -0.0015),
    ],
)
def test_numbers_where_numbers_are_wanted(text: str, expected: float) -> None:
    found = value(text, {"type": "number"})
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "text", [".inf", "-.inf", ".nan", "1e999", "007", "00.5", "1_000", "0x10", "9" * 5000, "NO", "1.2.3"]
)
def test_what_is_no_finite_decimal_number_stays_text(text: str) -> None:
    assert value(text, {"type": "number"}) == text


def test_whole_numbers_may_be_written_with_an_exponent() -> None:
    found = value("1e3", {"type": "integer"})
    assert found == 1000
    assert isinstance(found, int)
    assert value("1.5", {"type": "integer"}) == 1.5


def test_integers_have_64_bits() -> None:
    assert value(str(2**63 - 1), {"type": "integer"}) == 2**63 - 1
    assert value(str(2**63), {"type": "integer"}) == str(2**63)
    assert value(str(-(2**63)), {"type": "integer"}) == -(2**63)


def test_booleans_where_booleans_are_wanted() -> None:
    assert value("true", {"type": "boolean"}) is True
    assert value("False", {"type": "boolean"}) is False
    assert value("yes", {"type": "boolean"}) == "yes"


def test_quotes_make_text_everywhere() -> None:
    assert value("'1'", {"type": "number"}) == "1"
    assert value('"true"', {"type": "boolean"}) == "true"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", 12),
        ("-1", -1),
        ("0.5", 0.5),
        ("true", True),
        ("1.10", "1.10"),
        ("NO", "NO"),
        ("1e3", "1e3"),
        ("1e+16", "1e+16"),
        ("2026-11-20", "2026-11-20"),
        ("007", "007"),
        ("+1", "+1"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("9" * 40, "9" * 40),
    ],
)
def test_free_places_lose_nothing(text: str, expected: object) -> None:
    found = value(text, {})
    assert found == expected
    assert type(found) is type(expected)


def test_alternatives_of_number_and_text() -> None:
    size = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert value("[N, 3, -1, 1e3, '4']", {"type": "array", "items": size}) == ["N", 3, -1, "1e3", "4"]


@given(
    st.integers(-(2**70), 2**70) | st.floats() | st.text("0123456789+-.eE_xo:ninfa~", min_size=1, max_size=30)
)
def test_free_scalars_can_be_written_back(written: object) -> None:
    text = str(written)
    source = parse_source(f"k: {text}\n".encode(), "f.yml")
    if source.root is None or type(source.root.entries[0].value).__name__ != "Scalar":
        return
    raw = source.root.entries[0].value
    found = resolve(source.root, {})["k"]
    if isinstance(found, int | float) and not isinstance(found, bool):
        assert str(found) == raw.text  # type: ignore[union-attr]
