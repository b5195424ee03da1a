"""The grammar of paths and their collisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.bundle.paths import check_collisions, check_path, collision_key
from mlbundle.errors import UnsafePath


@pytest.mark.parametrize(
    "path",
    ["a", "model.onnx", "data/000.png", ".hidden", "..a/b..", "a b/c d", "é/ü", "数据/样本.txt", "console", "com10",
     "nulls.txt", "x" * 255, "/".join("d" * 32)],
)  # fmt: skip
def test_ordinary_names_are_allowed(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("", "empty"),
        ("/a", "absolute"),
        ("a/", "empty part"),
        ("a//b", "empty part"),
        ("..", "part '..'"),
        ("a/../b", "part '..'"),
        ("a/./b", "part '.'"),
        ("a\\b", "backslash"),
        ("c:a", "colon"),
        ("a\0b", "control"),
        ("a\x7fb", "control"),
        ("a\x85b", "control"),
        ("a\u2028b", "control"),
        ("e\u0301", "normal form C"),
        ("\udcff", "valid Unicode"),
        ("con", "device"),
        ("a/NUL.tar.gz", "device"),
        ("Com1", "device"),
        ("lpt¹.txt", "device"),
        ("aux .txt", "device"),
        ("x" * 256, "255 bytes"),
        ("é" * 128, "255 bytes"),
        ("/".join("d" * 33), "deeper than 32"),
        ("/".join(["y" * 250] * 5), "1024 bytes"),
        ("\u2024\u2024/x", "normalisation"),
        ("\u2100", "normalisation"),
    ],
)
def test_dangerous_names_are_refused_with_the_rule(path: str, rule: str) -> None:
    with pytest.raises(UnsafePath) as refused:
        check_path(path, where="here")
    assert rule in refused.value.message
    assert refused.value.where == "here"
    assert refused.value.exit_code == 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A", "a"),
        ("ﬁle", "file"),
        ("straße", "STRASSE"),
        ("x/Ä", "X/ä"),
        ("Ⅳ", "iv"),
        ("a", "a/b"),
        ("A/b", "a"),
    ],
)
def test_names_that_are_one_file_somewhere_collide(one: str, other: str) -> None:
    with pytest.raises(UnsafePath):
        check_collisions([one, other])


def test_the_same_name_twice_is_a_collision() -> None:
    with pytest.raises(UnsafePath, match="listed twice"):
        check_collisions(["a", "b", "a"])


def test_neighbours_do_not_collide() -> None:
    check_collisions(["a", "a.b", "a-b/c", "ab", "b/a", "b/a.txt"])


@given(st.text(max_size=40))
def test_any_text_is_allowed_or_refused_and_stays_inside(path: str) -> None:
    try:
        check_path(path)
    except UnsafePath:
        return
    parts = path.split("/")
    assert ".." not in parts
    assert "" not in parts
    assert not set(path) & set("\\:\0\n")
    assert collision_key(path) == collision_key(path.upper()) or path.upper().lower() != path.lower()
