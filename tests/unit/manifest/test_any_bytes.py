"""Whatever stands in a file: problems, never an exception, and a value only without errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifest_samples import MODEL

from mlbundle.errors import ManifestInvalid
from mlbundle.manifest.load import Loaded, parse_framework, parse_model

FRAMEWORK = "name: f\nversion: 1.0.0\ncontainers: {amd64: {cpu: 'a/b:1'}}\npython: {arm64: {cpu: a.lock}}\n"
FULL = (
    MODEL
    + """\
dataset: {format: npz, path: d.npz, labels: y, inputs: {input: x}}
expected: {accuracy: {metric: top1, value: 0.9}, outputs: {rtol: 1e-3}, performance: [{machine: m, scenario: s}]}
attributes: {top1: 1, training_dataset: [{name: x}]}
variants: [{framework: {name: torch}, model: {graph_path: g}, outputs: [{type: image, steps: [argsort: {k: 5}]}]}]
preprocess: |
  def preprocess(env, data):
      return data
postprocess: [[code]]
"""
)


def check(data: bytes) -> None:
    results: list[Loaded[object]] = [parse_model(data, "f"), parse_framework(data, "f")]  # type: ignore[list-item]
    for loaded in results:
        assert (loaded.value is None) == bool(loaded.errors)
        last = data.count(b"\n") + data.count(b"\r") + 2
        for problem in loaded.problems:
            assert 1 <= problem.line <= last
            assert problem.column >= 1
            assert problem.pointer == "" or problem.pointer.startswith("/")
            assert str(problem).isprintable()
        if loaded.errors:
            with pytest.raises(ManifestInvalid) as caught:
                loaded.require()
            assert len(caught.value.problems) == len(loaded.problems)


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    check(data)


@given(st.text("ab:-[]{}&*!|>'\"%#,?<~.1 \n\t", max_size=120))
def test_any_yaml_like_text(text: str) -> None:
    check(text.encode())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(text: str) -> st.SearchStrategy[tuple[int, int]]:
    return st.integers(0, len(text)).flatmap(
        lambda i: st.tuples(st.just(i), st.integers(i, min(len(text), i + 30)))
    )


@settings(max_examples=200)
@given(
    st.sampled_from([FULL, FRAMEWORK]).flatmap(lambda t: st.tuples(st.just(t), places(t))),
    st.text(max_size=12) | values,
)
def test_a_sound_manifest_with_one_stretch_replaced(place: tuple[str, tuple[int, int]], new: object) -> None:
    text, (start, end) = place
    written = new if isinstance(new, str) else json.dumps(new)
    check((text[:start] + written + text[end:]).encode("utf-8", "surrogatepass"))


def test_the_starting_points_are_sound() -> None:
    assert parse_model(FULL.encode(), "f").errors == ()
    assert parse_framework(FRAMEWORK.encode(), "f").errors == ()
