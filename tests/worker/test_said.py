"""What a predictor says of itself reaches the record as JSON, whatever it is."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from mlbundle.worker.said import MOST_ITEMS, MOST_TEXT, facts_of


def handle(facts: object) -> SimpleNamespace:
    return SimpleNamespace(facts=facts)


def test_plain_values_stay_as_they_are() -> None:
    facts = {"device": "cpu", "threads": 2, "share": 0.5, "tf32": False, "none": None, "list": [1, "a"]}
    assert facts_of(handle(facts)) == facts
    assert facts_of(SimpleNamespace()) == {}


def test_numbers_of_numpy_become_numbers_and_what_is_not_finite_text() -> None:
    facts = {"a": np.int64(3), "b": np.float32(0.5), "c": float("nan"), "d": np.float64("inf"), "e": 1 << 70}
    assert facts_of(handle(facts)) == {"a": 3, "b": 0.5, "c": "nan", "d": "inf", "e": str(1 << 70)}


def test_everything_is_cut_to_a_size_that_a_record_can_hold() -> None:
    facts = {"long": "x" * 3_000_000, "deep": {"a": {"b": {"c": 1}}}, **{str(n): n for n in range(1000)}}
    found = facts_of(handle(facts))
    assert len(found) == MOST_ITEMS
    assert len(found["long"]) == MOST_TEXT
    assert len(json.dumps(found)) < 10_000


def test_lone_surrogates_and_objects_become_text_that_can_be_sent() -> None:
    found = facts_of(handle({"bad": "a\ud800b", "object": object(), 7: {1: "x"}}))
    json.dumps(found).encode()
    assert found["bad"].encode("utf-8")
    assert found["7"] == {"1": "x"}


def test_facts_that_are_no_dictionary_are_refused() -> None:
    with pytest.raises(TypeError, match="a dictionary, not a int"):
        facts_of(handle(5))
