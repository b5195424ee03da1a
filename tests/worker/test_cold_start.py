"""Cold starts: what the import of a framework takes, the phases, and what the host believes of them."""

from __future__ import annotations

import builtins
import sys

import numpy as np
import pytest

from mlbundle.errors import ProtocolBroken
from mlbundle.runs.cold_start import collect
from mlbundle.wire.events import Result
from mlbundle.wording import results_cold_start
from mlbundle.worker.cold_start import ImportClock, _phases


@pytest.fixture
def slow_module(tmp_path, monkeypatch):
    """A framework that takes 20 ms to import, and imports another module as well."""
    (tmp_path / "slow_framework.py").write_text(
        "import time, slow_part\nuntil = time.monotonic() + 0.02\nwhile time.monotonic() < until: pass\n"
    )
    (tmp_path / "slow_part.py").write_text("import json\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "slow_framework"
    for name in ("slow_framework", "slow_part"):
        sys.modules.pop(name, None)


def test_the_import_of_a_framework_is_timed_wherever_it_happens(slow_module) -> None:
    original = builtins.__import__
    with ImportClock((slow_module,)) as imports:
        import json  # noqa: F401 - another module is not what is timed

        assert imports.done_ns == 0
        import slow_framework

        assert builtins.__import__ is original, "what comes after it costs nothing"
    assert slow_framework.slow_part
    assert imports.done_ns - imports.begun_ns >= 20_000_000
    assert builtins.__import__ is original


def test_a_framework_that_is_there_already_or_never_comes_has_no_import(slow_module) -> None:
    import slow_framework

    original = builtins.__import__
    with ImportClock((slow_module,)) as imports:
        import slow_framework  # noqa: F401
    assert imports.done_ns == 0
    assert builtins.__import__ is original


def test_an_import_that_fails_leaves_imports_as_they_were() -> None:
    original = builtins.__import__
    with pytest.raises(ImportError), ImportClock(("framework_that_is_not",)):
        import framework_that_is_not  # noqa: F401
    assert builtins.__import__ is original


def test_the_import_is_cut_out_of_the_load() -> None:
    marks = [("spawned", 0), ("interpreter", 100), ("load", 400), ("prepare", 410), ("answer", 450)]
    imports = ImportClock(())
    assert _phases(marks, imports) == [
        ("interpreter", 0, 100),
        ("load", 100, 400),
        ("prepare", 400, 410),
        ("answer", 410, 450),
    ]
    imports.begun_ns, imports.done_ns = 150, 350
    assert _phases(marks, imports)[1:4] == [("load", 100, 150), ("import", 150, 350), ("load", 350, 400)]


# What the host makes of it.


def said(folder, totals=(900, 500, 700)):
    results = {}
    for number, total in enumerate(totals):
        place = f"passes/{number:02}-cold-start"
        (folder / place).mkdir(parents=True)
        np.save(folder / place / "latencies.npy", np.array([total], np.int64))
        values = {
            "folder": place,
            "total_ns": total,
            "phases": {
                "interpreter": total - 300,
                "import": 100,
                "load": 150,
                "prepare": 10,
                "answer": 40,
            },
            "peak_memory_bytes": 10 + number,
            "framework": {"version": "1"},
        }
        results[f"cold-start:{number}"] = Result(pass_kind=f"cold-start:{number}", values=values)
    return results


def test_the_first_start_is_shown_apart_and_the_median_is_of_the_others(tmp_path) -> None:
    found = collect(tmp_path, said(tmp_path), {"repeats": 3})
    cold = found.result["cold_start"]
    assert [start["total_ns"] for start in cold["starts"]] == [900, 500, 700]
    assert cold["first_ns"] == 900
    assert cold["median"]["total_ns"] == 600
    assert cold["median"]["phases"]["interpreter"] == 300
    assert found.result["latency_ns"]["max"] == 900
    assert found.result["queries"] == 3
    assert found.queries is None, "five starts are enough: it is no percentile"
    assert found.peak_memory_bytes == 12
    assert found.headline == "passes/00-cold-start"
    shown = results_cold_start.lines(found.result)
    assert shown[0] == ("first start", "900 ns")
    assert shown[1] == ("cold start", "600 ns to the first answer, median of the 2 after it")


def test_one_start_is_its_own_median(tmp_path) -> None:
    found = collect(tmp_path, said(tmp_path, (900,)), {"repeats": 1})
    assert found.result["cold_start"]["median"]["total_ns"] == 900
    assert results_cold_start.lines(found.result)[1][1].endswith("the only one")


LIES = {
    "a start that is missing": lambda r: r.pop("cold-start:1"),
    "phases that are not the whole": lambda r: r["cold-start:1"].values["phases"].update(load=1),
    "a phase of its own": lambda r: r["cold-start:1"].values["phases"].update(tea=0),
    "a phase that is no number": lambda r: r["cold-start:1"].values["phases"].update(load="x"),
    "no phases": lambda r: r["cold-start:1"].values.update(phases=[]),
    "another total than in its file": lambda r: (
        r["cold-start:1"].values.update(total_ns=501),
        r["cold-start:1"].values["phases"].update(load=151),
    ),
    "the folder of another kind": lambda r: r["cold-start:1"].values.update(folder="passes/01-measure"),
    "a folder upwards": lambda r: r["cold-start:1"].values.update(folder="passes/01-/../../x-cold-start"),
    "the folder of nobody": lambda r: r["cold-start:1"].values.update(folder="passes/09-cold-start"),
    "the same folder twice": lambda r: r["cold-start:1"].values.update(r["cold-start:0"].values),
    "no memory": lambda r: r["cold-start:1"].values.pop("peak_memory_bytes"),
}


@pytest.mark.parametrize("name", sorted(LIES))
def test_a_lie_about_a_start_is_not_believed(tmp_path, name) -> None:
    results = said(tmp_path)
    LIES[name](results)
    with pytest.raises(ProtocolBroken):
        collect(tmp_path, results, {"repeats": 3})
