"""What workers and frameworks say of themselves is believed only in its right type and size."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.runtime.facts import capped, problem_of_facts
from mlbundle.worker.surroundings import surroundings

HONEST = {"distributions": {"numpy": "2.4.6"}}


def test_what_our_worker_says_is_believed() -> None:
    assert problem_of_facts(json.loads(json.dumps(surroundings()))) is None


def test_a_worker_of_an_older_version_is_believed() -> None:
    assert problem_of_facts({**HONEST, "machine": "x86_64", "libc": "glibc 2.36", "uid": 0}) is None


@pytest.mark.parametrize(
    "lie",
    [
        {"distributions": []},
        {"distributions": {"a": 1}},
        {"distributions": {str(n): "1" for n in range(10_001)}},
        {**HONEST, "libc": 7},
        {**HONEST, "variables": {"OMP_NUM_THREADS": 4}},
        {**HONEST, "variables": ["OMP_NUM_THREADS"]},
        {**HONEST, "variables": {str(n): "" for n in range(1_001)}},
        {**HONEST, "variables": {"A": "x" * 70_000}},
        {**HONEST, "cpus": "0-3"},
        {**HONEST, "cpus": [True]},
        {**HONEST, "cpus": [-1]},
        {**HONEST, "cpus": [1 << 40]},
        {**HONEST, "cpus": [0] * 20_000},
        {**HONEST, "cgroup": {"memory_bytes": {"a": 1}}},
        {**HONEST, "cgroup": {"memory_bytes": 1 << 70}},
        {**HONEST, "cgroup": {"version": "v" * 2000}},
        {**HONEST, "cgroup": []},
    ],
)
def test_lies_are_noticed(lie) -> None:
    assert problem_of_facts(lie)


def test_what_a_framework_says_is_cut_to_size() -> None:
    said = {
        "device": "cpu",
        "threads": 2,
        "long": "x" * 5000,
        "many": list(range(1000)),
        "deep": {"a": {"b": {"c": {"d": {"e": 1}}}}},
        "infinite": math.inf,
        "huge": 1 << 100,
    }
    found = capped(said)
    assert (found["device"], found["threads"]) == ("cpu", 2)
    assert len(found["long"]) == 1000
    assert found["many"] == list(range(64))
    assert found["infinite"] == "inf"
    assert len(capped({str(n): n for n in range(100)})) == 64
    json.dumps(found, allow_nan=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_whatever_a_framework_says_is_json_afterwards(value) -> None:
    text = json.dumps(capped(value), allow_nan=False)
    assert capped(json.loads(text)) == json.loads(text)
