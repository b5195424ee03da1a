"""Values of records in words, and the environment of a run beside that of this machine."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

from mlbundle.runs.environment import machine_document
from mlbundle.runs.told import environment_facts, machine_changes, named, told

GOLDEN = json.loads((ROOT / "tests" / "golden" / "record-docker.json").read_text())


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory_bytes", 3 << 20, "3.00 MiB"),
        ("p50_ns", 1500, "1.50 us"),
        ("duration_s", 2.5, "2.50 s"),
        ("rate_per_s", 1234.5, "1,234 /s"),
        ("max_khz", 2_400_000, "2400 MHz"),
        ("queries", 123456, "123,456"),
        ("settled", True, "yes"),
        ("list", [1, 2, None], "1 2"),
        ("engine", {"kind": "docker", "size_bytes": 1024, "none": None}, "kind docker, size 1.00 KiB"),
        ("nothing", None, ""),
        ("bytes", 12, "12 B"),
    ],
)
def test_units_are_in_the_names(name: str, value: object, text: str) -> None:
    assert told(name, value) == text


def test_names_are_words() -> None:
    assert [named(name) for name in ("cpu_model", "memory_bytes", "_s", "max_sm_mhz")] == [
        "CPU model",
        "memory",
        "_s",
        "max sm",
    ]


def test_what_differs_from_this_machine_is_beside_it() -> None:
    record = copy.deepcopy(GOLDEN)
    here = record["environment"]["machine"] | {"kernel": "5.4", "memory_bytes": 1 << 30, "gpus": None}
    facts = environment_facts(record, here)
    differing = {fact.name: (fact.value, fact.here) for fact in facts if fact.here is not None}
    kernel = record["environment"]["machine"]["kernel"]
    assert differing == {"kernel": (kernel, "5.4"), "memory": ("23.5 GiB", "1.00 GiB")}
    assert {change.name for change in machine_changes(record, here)} == {"kernel", "memory bytes"}
    sections = [fact.section for fact in facts]
    assert [s for i, s in enumerate(sections) if i == 0 or sections[i - 1] != s] == list(
        dict.fromkeys(sections)
    )


def test_without_this_machine_nothing_differs() -> None:
    record = copy.deepcopy(GOLDEN)
    record["environment"]["warnings"] = [{"reference": "machine-loaded", "message": "busy"}]
    facts = environment_facts(record)
    assert (facts[0].section, facts[0].value) == ("warnings", "busy")
    assert all(fact.here is None for fact in facts)
    assert all(fact.name != "flags" for fact in facts)
    record["environment"]["machine"] = machine_document(with_gpus=False)
    assert machine_changes(record, machine_document(with_gpus=False)) == []


def test_a_run_that_broke_off_has_no_environment() -> None:
    assert environment_facts(
        {"environment": {}, "framework": {"name": "torch", "version": ""}, "image": None}
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
    st.text(),
)
def test_any_value_is_told(value: object, name: str) -> None:
    assert isinstance(told(name, value), str)
