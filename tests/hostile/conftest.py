"""A folder that an escape would be seen from, and the number of cases by class of attack at the end of the run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

CLASSES = {
    1: "paths",
    2: "symbolic links",
    3: "hard links",
    4: "devices and modes",
    5: "duplicates",
    6: "smuggling by pax",
    7: "headers",
    8: "sizes",
    9: "digests",
    10: "wrong bytes",
    11: "ends",
    12: "bombs",
    13: "zstd frames",
    14: "collisions",
    15: "YAML",
    16: "JSON",
    17: "pickles",
    18: "steering the engine",
    19: "registries",
    20: "referrers",
}
BY_FILE = {"test_manifests.py": 15, "test_registry_lies.py": 19}
"""Files all of whose tests are of one class."""

BY_MARK = "attack"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "attack(number): the class of attack that a test is about")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Note the class of every test where its report will tell."""
    for item in items:
        mark = item.get_closest_marker(BY_MARK)
        broken = getattr(item, "callspec", None) and item.callspec.params.get("broken")  # type: ignore[attr-defined]
        number = mark.args[0] if mark else getattr(broken, "attack", None) or BY_FILE.get(item.path.name)
        if number and item.path.parent == Path(__file__).parent:
            item.user_properties.append((BY_MARK, number))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = Counter(
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in getattr(report, "user_properties", ())
        if name == BY_MARK and report.when == "call"
    )
    if counts:
        terminalreporter.section("attacks that were refused")
        for number, name in CLASSES.items():
            terminalreporter.write_line(f"{counts[number]:5d}  {number:2d} {name}")
        terminalreporter.write_line(f"{counts.total():5d}  in all, {len(counts)} classes of {len(CLASSES)}")


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with another beside it that an escape would reach."""
    inner = tmp_path / "outside" / "box"
    inner.mkdir(parents=True)
    (tmp_path / "outside" / "precious.txt").write_text("untouched")
    monkeypatch.chdir(inner)
    return inner
