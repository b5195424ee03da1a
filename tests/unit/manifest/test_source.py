"""Reading YAML: positions, raw text, and everything that is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlbundle.errors import ReferenceNotFound, StorageFailed, UsageError
from mlbundle.manifest.nodes import Block, Listing, Scalar, locate
from mlbundle.manifest.source import MAX_BYTES, parse_source, read_bytes


def problems(data: bytes | str) -> list[str]:
    source = parse_source(data.encode() if isinstance(data, str) else data, "f.yml")
    return [f"{p.line}:{p.column} {p.pointer} {p.message}" for p in source.problems]


def test_nodes_keep_raw_text_style_and_place() -> None:
    source = parse_source(b"a: 1.10\nb:\n  - 'NO'\n", "f.yml")
    assert source.problems == ()
    root = source.root
    assert isinstance(root, Block)
    first = locate(root, ["a"])
    assert isinstance(first, Scalar)
    assert (first.text, first.style, first.mark.line, first.mark.column) == ("1.10", "", 1, 4)
    second = locate(root, ["b", 0])
    assert isinstance(second, Scalar)
    assert (second.text, second.style, second.pointer) == ("NO", "'", "/b/0")


def test_pointers_escape_slash_and_tilde() -> None:
    source = parse_source(b"c/d~e: [1]\n", "f.yml")
    assert source.root is not None
    node = locate(source.root, ["c/d~e", 0])
    assert node is not None
    assert node.pointer == "/c~1d~0e/0"


def test_columns_count_characters_not_bytes() -> None:
    source = parse_source("{ä: ö, ü: x}".encode(), "f.yml")
    assert source.root is not None
    node = locate(source.root, ["ü"])
    assert node is not None
    assert (node.mark.line, node.mark.column) == (1, 11)


def test_byte_order_mark_and_windows_line_ends_are_read() -> None:
    source = parse_source(b"\xef\xbb\xbfa: 1\r\nb:\r\n  - x\r\n", "f.yml")
    assert source.problems == ()
    assert source.root is not None
    assert isinstance(locate(source.root, ["b"]), Listing)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1  the file is empty"),
        ("# only a comment\n", "1:1  the file is empty"),
        ("---\n", "2:1  the file is empty"),
        ("just words\n", "1:1  the file is no mapping"),
        ("- a\n- b\n", "1:1  the file is no mapping"),
        ("a: 1\n---\nb: 2\n", "2:1  the file holds a second document"),
        (
            "a: !!python/name:os.system x\n",
            "1:4 /a a tag ('tag:yaml.org,2002:python/name:os.system') is not allowed",
        ),
        ("a: !!str x\n", "1:4 /a a tag ('tag:yaml.org,2002:str') is not allowed"),
        ("%TAG ! tag:x,2000:\n---\na: 1\n", "1:1  tag directives (%TAG) are not allowed"),
        ("a: &x 1\n", "1:4 /a an anchor ('x') is not allowed"),
        ("a: 1\nb: 2\na: 3\n", "3:1 /a the key 'a' is repeated; it stands on line 1 already"),
        ("a: {b: 1, 'b': 2}\n", "1:11 /a/b the key 'b' is repeated; it stands on line 1 already"),
        ("[a, b]: 1\n", "1:1  a list or a mapping can't be a key"),
        ("a:\n  <<: {b: 1}\n", "2:3 /a/<< a merge key (<<) is not allowed"),
        ("a: 1\nb: \x07\n", "2:4  the character U+0007 is not allowed"),
        ("a: 1\nb: \x00\n", "2:4  the character U+0000 is not allowed"),
    ],
)
def test_what_is_refused(text: str, expected: str) -> None:
    assert problems(text) == [expected]


def test_a_key_of_two_angle_brackets_in_quotes_is_an_ordinary_key() -> None:
    assert problems("'<<': 1\n") == []


def test_aliases_are_refused_where_they_stand() -> None:
    assert problems("a: &x 1\nb: *x\n") == [
        "1:4 /a an anchor ('x') is not allowed",
        "2:4 /b an alias ('x') is not allowed",
    ]


def test_syntax_errors_have_a_place() -> None:
    (problem,) = parse_source(b"a: 1\nb: [1, 2\nc: 3\n", "f.yml").problems
    assert problem.line == 3
    assert problem.message.startswith("the file is no YAML: ")


def test_tabs_are_explained() -> None:
    (problem,) = parse_source(b"a:\n\tb: 1\n", "f.yml").problems
    assert (problem.line, problem.column) == (2, 1)
    assert problem.hint == "indent with spaces, not with tabs"


def test_not_utf8_names_byte_and_place() -> None:
    assert problems(b"a: 1\nb: \xff\n") == ["2:4  the file is not UTF-8: byte 0xff at offset 8"]


def test_depth_is_limited_to_32_levels() -> None:
    # The root mapping is level 1, so 31 brackets inside it reach level 32.
    assert problems("a: " + "[" * 31 + "]" * 31) == []
    (problem,) = parse_source(("a: " + "[" * 32 + "]" * 32).encode(), "f.yml").problems
    assert problem.message == "the file is nested too deeply"
    assert problem.column == 35


def test_number_of_values_is_limited() -> None:
    assert [p.split(" ", 1)[1] for p in problems("a: [" + "1," * 30_000 + "]")] == [
        "/a/19997 the file has too many values"
    ]


def test_size_is_limited_to_one_mebibyte() -> None:
    assert problems(b"#" * MAX_BYTES) == ["1:1  the file is empty"]
    assert problems(b"#" * (MAX_BYTES + 1)) == ["1:1  the file is too large"]


def test_a_missing_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ReferenceNotFound) as caught:
        read_bytes(tmp_path / "nothing.yml")
    assert caught.value.where == str(tmp_path / "nothing.yml")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    with pytest.raises(UsageError):
        read_bytes(fifo)
    with pytest.raises(UsageError):
        read_bytes(tmp_path)


def test_an_unreadable_path_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a: 1")
    with pytest.raises(StorageFailed):
        read_bytes(tmp_path / "file" / "model.yml")
    with pytest.raises(StorageFailed):
        read_bytes(Path("nul\0byte"))
