"""JSON from strangers."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.bundle.oci import go_json
from mlbundle.bundle.strictjson import Fields, loads
from mlbundle.errors import BundleCorrupt

documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(documents)
def test_what_we_print_is_read_back(document: object) -> None:
    assert loads(go_json(document), where="x") == document


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(BundleCorrupt):
        assert loads(data, where="x") == json.loads(data)


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":1}', '[{"a":{"b":1,"c":2,"b":3}}]', "NaN", "[-Infinity]", "1e999", "1.5", "9223372036854775808",
     "-9223372036854775808", "1" * 5000, '"\\ud800"', '{"\\udfff":1}', "[1]x", "", " ", "[1,]", "{'a':1}", '"a\nb"',
     "\ufeff1", "[" * 33 + "]" * 33, '{"a":' * 33 + "1" + "}" * 33, "[" * 200_000],
)  # fmt: skip
def test_what_readers_disagree_about_is_refused(text: str) -> None:
    with pytest.raises(BundleCorrupt):
        loads(text.encode(), where="x")


def test_limits_are_inclusive() -> None:
    assert loads(b"[" * 32 + b"]" * 32, where="x") is not None
    assert loads(b"9223372036854775807", where="x") == 2**63 - 1
    assert loads(b'"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["', where="x").startswith("[")
    assert loads(b'"12345678"', where="x", max_bytes=10) == "12345678"
    with pytest.raises(BundleCorrupt, match="over the cap of 9"):
        loads(b'"12345678"', where="x", max_bytes=9)


def test_fields_say_where_a_surprise_is() -> None:
    fields = Fields({"a": {"b": [1]}, "n": True}, "f#", frozenset({"a", "n"}))
    assert fields.object("a").array("b", maximum=1) == [1]
    with pytest.raises(BundleCorrupt) as refused:
        fields.object("a").text("b")
    assert refused.value.where == "f#/a/b"
    for surprise in (
        lambda: fields.integer("n"),
        lambda: fields.text("missing"),
        lambda: fields.object("a").array("b", maximum=0),
        lambda: fields.constant("n", 1),
        lambda: Fields([], "f#"),
        lambda: fields.object("a", frozenset({"c"})),
        lambda: list(fields.object("a").objects("b", maximum=5)),
    ):
        with pytest.raises(BundleCorrupt):
            surprise()
