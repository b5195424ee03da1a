"""Version constraints: the table of npm's forms, decided by hand."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.errors import UsageError
from mlbundle.manifest.versions import VersionConstraint

TABLE = [
    # constraint, versions that fit, versions that do not
    ("1.14.0", ["1.14.0", "1.14.0+cu121"], ["1.14.1", "1.13.0", "1.14.0rc1"]),
    (">=1.12.0 <2.0", ["1.12.0", "1.15.5", "1.99"], ["1.11.9", "2.0", "2.0.0rc1", "1.12.0rc1"]),
    (">=1.1.0", ["1.1.0", "7.0.0"], ["1.0.9", "7.0.0a1"]),
    ("~1.2.x", ["1.2.0", "1.2.99"], ["1.3.0", "1.1.9"]),
    ("~1.2.3", ["1.2.3", "1.2.9"], ["1.2.2", "1.3.0"]),
    ("~1", ["1.0.0", "1.9.0"], ["2.0.0", "0.9.0"]),
    ("~>1.2", ["1.2.7"], ["1.3.0"]),
    ("^0.1", ["0.1.0", "0.1.99"], ["0.2.0", "0.0.9"]),
    ("^0.0.3", ["0.0.3"], ["0.0.4", "0.0.2"]),
    ("^0.0", ["0.0.0", "0.0.9"], ["0.1.0"]),
    ("^0", ["0.0.1", "0.9.0"], ["1.0.0"]),
    ("^1.2.3", ["1.2.3", "1.99.0"], ["1.2.2", "2.0.0"]),
    ("1.x", ["1.0.0", "1.31.1"], ["2.0.0", "0.9.0"]),
    ("1.2.*", ["1.2.0", "1.2.3"], ["1.3.0"]),
    ("1.14", ["1.14.0", "1.14.7"], ["1.15.0"]),
    ("*", ["0.0.1", "99.0", "1.0.0rc1"], []),
    ("", ["1.0.0"], []),
    ("x", ["1.0.0"], []),
    ("1.2 - 2.0", ["1.2.0", "2.0.9"], ["2.1.0", "1.1.9"]),
    ("1.2.3 - 2.3.4", ["1.2.3", "2.3.4"], ["2.3.5", "1.2.2"]),
    ("1.x || 3.x", ["1.5.0", "3.0.0"], ["2.0.0", "4.0.0"]),
    (">1.2", ["1.3.0"], ["1.2.9", "1.2.0"]),
    (">1.2.3", ["1.2.4"], ["1.2.3"]),
    ("<=1.2", ["1.2.9", "0.1.0"], ["1.3.0"]),
    ("<1.2", ["1.1.9"], ["1.2.0"]),
    (">= 1.2 , < 2", ["1.2.0"], ["2.0.0"]),
    ("v1.2.3", ["1.2.3"], ["1.2.4"]),
    ("=1.2.3", ["1.2.3"], ["1.2.4"]),
    ("2.0.0-rc.1", ["2.0.0rc1", "2.0.0-rc.1"], ["2.0.0", "2.0.0rc2"]),
    (">=2.0.0-rc.1", ["2.0.0rc1", "2.0.0", "2.1.0"], ["2.0.0b9"]),
    ("2.1.0+cu121", ["2.1.0+cu121"], ["2.1.0+cpu", "2.1.0"]),
    ("~1.10.0", ["1.10.5"], ["1.1.0", "1.9.0"]),
]


@pytest.mark.parametrize(("constraint", "fits", "fails"), TABLE, ids=[row[0] or "empty" for row in TABLE])
def test_table(constraint: str, fits: list[str], fails: list[str]) -> None:
    parsed = VersionConstraint.parse(constraint)
    assert [v for v in fits if not parsed.allows(v)] == []
    assert [v for v in fails if parsed.allows(v)] == []


@pytest.mark.parametrize(
    "text",
    ["one", ">>1", ">x", "<*", "1.x.3", "1.2-rc", "!=1", "~=1.2", "==1.2.3", "1..2", "1 -", "a || b", "1.2.3-", "1.2.3foo",
     "9" * 12, "1" * 300, "1.2.3; rm", "\n>", "\uff11.2.3"],
)  # fmt: skip
def test_nonsense_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        VersionConstraint.parse(text)
    assert caught.value.hint is not None


def test_asking_about_no_version_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        VersionConstraint.parse("*").allows("newest")


@given(st.text("0123456789.xX*<>=~^| -v+ab,", max_size=40) | st.text(max_size=40))
def test_any_text_parses_or_is_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert VersionConstraint.parse(text).allows("1.2.3") in {True, False}


parts = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))


@given(parts, parts)
def test_caret_and_tilde_agree_with_their_definition(
    base: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    text, version = (".".join(map(str, triple)) for triple in (base, other))
    kept = next((i for i, part in enumerate(base) if part), 2)
    same_stable = other[: kept + 1] == base[: kept + 1]
    assert VersionConstraint.parse(f"^{text}").allows(version) == (other >= base and same_stable)
    assert VersionConstraint.parse(f"~{text}").allows(version) == (other >= base and other[:2] == base[:2])
