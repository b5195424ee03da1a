"""The line that filters bundles: words, fields, and whatever is typed or pasted."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.runs.bundle_filter import FIELDS, parse_filter


@pytest.mark.parametrize(
    ("text", "words", "fields"),
    [
        ("", (), ()),
        ("ResNet 50", ("resnet", "50"), ()),
        ("task:image framework:Torch", (), (("task", "image"), ("framework", "torch"))),
        ('task:"image classification" x', ("x",), (("task", "image classification"),)),
        ("state=ready", (), (("state", "ready"),)),
        ("framework:", (), ()),
        ('task:"image cl', (), (("task", "image cl"),)),
        ("sha256:abc http://x", ("sha256:abc", "http://x"), ()),
    ],
)
def test_what_a_line_means(text: str, words: tuple[str, ...], fields: tuple[tuple[str, str], ...]) -> None:
    found = parse_filter(text)
    assert (found.words, found.fields) == (words, fields)


def test_only_what_manifests_say_wants_them_read() -> None:
    assert not parse_filter("resnet framework:torch where:library").wants_manifests
    assert parse_filter("task:image").wants_manifests
    assert parse_filter("state:ready").wants_states
    assert parse_filter("x state:ready task:image").without_state() == parse_filter("x task:image")


@given(st.text(max_size=300))
def test_any_text_is_a_filter_that_sql_understands(text: str) -> None:
    conditions, values = parse_filter(text).conditions()
    columns = ", ".join(f"'' AS \"{name}\"" for name in ("search", *FIELDS))
    with sqlite3.connect(":memory:") as connection:
        connection.execute(
            f"SELECT count(*) FROM (SELECT {columns}) WHERE {' AND '.join(['1', *conditions])}",
            [value.encode("utf-8", "replace").decode() for value in values],
        )
    connection.close()
