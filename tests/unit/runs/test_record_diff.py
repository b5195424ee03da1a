"""Two run records side by side: the conditions first, then the numbers."""

from __future__ import annotations

import copy
import json

import pytest
from support import ROOT

from mlbundle.cli.record_views import show_difference, show_environment
from mlbundle.runs.record_diff import diff_records


@pytest.fixture
def record():
    return json.loads((ROOT / "tests" / "golden" / "record-docker.json").read_text())


def changed(record, **places):
    other = copy.deepcopy(record)
    for place, value in places.items():
        *path, last = place.split("__")
        inner = other
        for name in path:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return other


def test_a_record_does_not_differ_from_itself(record) -> None:
    found = diff_records(record, record, everything=True)
    assert found.changes == ()
    assert found.same_conditions


def test_other_numbers_alone_are_the_same_conditions(record) -> None:
    other = changed(record, result__throughput_per_s=2 * record["result"]["throughput_per_s"], run_id="later")
    found = diff_records(record, other)
    (change,) = found.changes
    assert (change.section, change.place, change.ratio) == ("result", "/result/throughput_per_s", 2.0)
    assert found.same_conditions


def test_what_explains_comes_before_what_was_measured(record) -> None:
    other = changed(
        record,
        result__queries=1,
        environment__machine__governor="powersave",
        environment__distributions__numpy="1.26.0",
        framework__version="1.30.0",
        environment__limits__threads=2,
    )
    found = diff_records(record, other)
    assert [c.section for c in found.changes] == ["framework", "limits", "machine", "distributions", "result"]
    assert not found.same_conditions


def test_distributions_that_one_side_lacks(record) -> None:
    other = copy.deepcopy(record)
    del other["environment"]["distributions"]["pillow"]
    other["environment"]["distributions"]["torch"] = "2.13.0"
    found = {c.place.rpartition("/")[2]: (c.left, c.right) for c in diff_records(record, other).changes}
    assert found == {
        "pillow": (record["environment"]["distributions"]["pillow"], None),
        "torch": (None, "2.13.0"),
    }


def test_a_warning_is_the_same_whatever_its_figures(record) -> None:
    def warned(message):
        return changed(
            record,
            environment__warnings=[{"reference": "machine-loaded", "message": message, "hint": "wait"}],
        )

    assert diff_records(warned("1 of 2"), warned("2 of 2")).changes == ()
    found = diff_records(record, warned("2 of 2"))
    assert {c.section for c in found.changes} == {"warnings"}
    assert not found.same_conditions


def test_clocks_and_times_differ_only_when_all_is_asked_for(record) -> None:
    other = changed(record, phases_s__load=9.0, environment__state={"before": {"limit_khz": 1}}, command="x")
    assert diff_records(record, other).changes == ()
    sections = {c.section for c in diff_records(record, other, everything=True).changes}
    assert sections == {"phases", "state", "moment"}


def test_names_with_slashes_are_pointers(record) -> None:
    other = changed(record)
    other["environment"]["distributions"]["a/b~c"] = "1"
    (change,) = diff_records(record, other).changes
    assert change.place == "/environment/distributions/a~1b~0c"


def test_the_document_is_json(record) -> None:
    other = changed(record, result=None, environment={})
    document = json.loads(json.dumps(diff_records(record, other, everything=True).to_document()))
    assert document["schema"] == "mlbundle/run-diff/v1"
    assert document["same_conditions"] is False


@pytest.mark.parametrize("name", ["record-docker.json", "record-failed.json"])
def test_older_records_are_shown_as_far_as_they_tell(name, capsys) -> None:
    show_environment(json.loads((ROOT / "tests" / "golden" / name).read_text()))
    assert "None" not in capsys.readouterr().out


def test_a_partial_record_is_shown(record, capsys) -> None:
    show_environment({**record, "environment": {}, "image": None, "worker": None})
    assert "framework" in capsys.readouterr().out


def test_of_long_lists_only_what_the_other_lacks_is_shown(record, capsys) -> None:
    flags = [f"flag{number}" for number in range(100)]
    one = changed(record, environment__machine__cpu={"flags": flags})
    other = changed(record, environment__machine__cpu={"flags": [*flags[1:], "avx512f"]})
    show_difference(diff_records(one, other))
    line = next(line for line in capsys.readouterr().out.splitlines() if "flags" in line)
    assert line.split()[-2:] == ["flag0", "avx512f"]
