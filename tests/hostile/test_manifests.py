"""Broken manifests through the command line: exit code 1, problems in words, no traceback, in little time.

The small ones lie in `manifests/`, the large and the binary ones are made here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mlbundle.cli.main import main
from mlbundle.resources import load_schema

FOLDER = Path(__file__).resolve().parent / "manifests"
LONGEST_S = 60.0

# Every file of the folder, and places (line, pointer) that must be among its problems.
SMALL: dict[str, set[tuple[int, str]]] = {
    "tag-python": {(1, "/name")},
    "alias-bomb": {(3, "/attributes/b/0"), (8, "/attributes/g/8")},
    "alias-to-itself": {(1, "/attributes"), (2, "/attributes/again")},
    "merge": {(3, "/attributes/base"), (5, "/model/<<")},
    "duplicate-key": {(3, "/name")},
    "two-documents": {(3, "")},
    "code-and-steps": {(9, "/preprocess")},
    "path-escape": {
        (7, "/outputs/0/steps/0/argsort/labels_url"),
        (8, "/model/graph_path"),
        (8, "/model/weights_path"),
        (9, "/dataset/path"),
        (9, "/dataset/index"),
    },
    "http-without-checksum": {(6, "/model/base_url")},
    "wrong-types": {
        (1, "/name"),
        (2, "/version"),
        (3, "/framework"),
        (4, "/inputs"),
        (5, "/outputs"),
        (6, "/model"),
        (7, "/attributes"),
        (8, "/references"),
        (9, "/expected"),
        (10, "/dataset"),
        (11, "/variants"),
    },
    "hostile-image": {
        (5, "/containers/amd64/cpu"),
        (6, "/containers/amd64/gpu/digest"),
        (6, "/containers/amd64/gpu/build"),
        (6, "/containers/amd64/gpu/network"),
    },
    "bad-code": {(7, "/preprocess"), (11, "/postprocess")},
    "terminal-codes": {(1, "/\x1b]0;owned\x07\x1b[2J"), (2, "/name")},
    "not-finite": {
        (6, "/inputs/0/steps/0/normalize/mean"),
        (6, "/inputs/0/steps/0/normalize/rescale"),
        (6, "/inputs/0/steps/0/normalize/stddev"),
        (9, "/expected/accuracy/value"),
    },
    "ten-mistakes": {(9, "/inputs/0/element_type")},
}

_HEAD = b"name: digits\nversion: 1.0.0\nframework: {name: onnxruntime}\n"

LARGE: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "two mebibytes of comment": lambda: b"#" * (2 << 20),
    "two mebibytes of keys": lambda: b"".join(b"k%d: 1\n" % n for n in range(200_000))[: 2 << 20],
    "half a mebibyte of keys": lambda: b"".join(b"k%d: 1\n" % n for n in range(40_000)),
    "nine thousand unknown keys": lambda: b"".join(b"k%d: 1\n" % n for n in range(9_000)),
    "one million brackets": lambda: b"a: " + b"[" * 1_000_000,
    "one million braces": lambda: b"{" * 1_000_000,
    "one million dashes": lambda: b"- " * 500_000,
    "one million question marks": lambda: b"? " * 500_000,
    "one million colons": lambda: b":" * 1_000_000,
    "many indentations": lambda: b"".join(b" " * n + b"a:\n" for n in range(1_000)),
    "an endless word": lambda: b"name: " + b"x" * 1_000_000,
    "an endless key": lambda: b"x" * 1_000_000 + b": 1",
    "an endless number": lambda: _HEAD + b"attributes: {top1: " + b"9" * 900_000 + b"}",
    "an endless version": lambda: b"version: " + b"1." * 400_000 + b"0",
    "an endless range": lambda: b"framework: {name: x, version: '" + b"1.x || " * 100_000 + b"1'}",
    "an endless path": lambda: b"model: {graph_path: '" + b"a/" * 400_000 + b"a'}",
    "an endless quoted word": lambda: b'name: "' + b"\\x41" * 200_000 + b'"',
    "nine thousand duplicates": lambda: b"a: 1\n" * 9_000,
    "fifteen thousand anchors": lambda: b"a:\n" + b"".join(b"- &a%d x\n" % n for n in range(15_000)),
    "not UTF-8": lambda: b"name: \xff\xfe\n",
    "UTF-16": lambda: "name: digits\n".encode("utf-16"),
    "overlong UTF-8": lambda: b"name: \xc0\xaf\n",
    "an encoded surrogate": lambda: b"name: \xed\xa0\x80\n",
    "NUL bytes": lambda: b"name: digits\0\nversion: 1.0.0\n",
    "control characters": lambda: b"name: \x1b[31m\n",
    "escaped surrogates": lambda: b'name: "\\uD800"\n',
    "an escape beyond Unicode": lambda: b'name: "\\UFFFFFFFF"\n',
    "a future YAML": lambda: b"%YAML 9.9\n---\nname: digits\n",
    "tag directives": lambda: b"%TAG !! tag:evil,2000:\n---\nname: !!x digits\n",
    "a bare alias": lambda: b"*x\n",
    "complex keys": lambda: b"? {a: [b]}\n: 1\n? [c]\n: 2\n",
    "deep code": lambda: _HEAD + b"preprocess: '" + b"(" * 200_000 + b"'",
    "wide code": lambda: _HEAD + b"preprocess: 'x" + b"+x" * 120_000 + b"'",
    "many steps": lambda: _HEAD + b"inputs: [{type: raw, steps: [" + b"a: , " * 6_000 + b"]}]",
    "a zip": lambda: b"PK\x03\x04" + bytes(range(256)) * 10,
    "an ELF": lambda: b"\x7fELF" + bytes(1000),
    "json": lambda: json.dumps({"name": "x", "inputs": [[[[]]]]}).encode(),
}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    begun = time.monotonic()
    with pytest.raises(SystemExit) as caught:
        main(["validate", *arguments])
    assert time.monotonic() - begun < LONGEST_S
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert "this should not have happened" not in out + err
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def refused(capsys: pytest.CaptureFixture[str], path: Path) -> list[dict[str, Any]]:
    """The problems of a file that must be refused; the same by lines and by JSON."""
    status, out, _ = run(capsys, "--json", str(path))
    assert status == 1
    document = json.loads(out)
    assert Draft202012Validator(load_schema("validation")).is_valid(document)
    assert document["valid"] is False
    (file,) = document["files"]
    problems: list[dict[str, Any]] = file["problems"]
    assert any(problem["severity"] == "error" for problem in problems)
    status, out, _ = run(capsys, str(path))
    assert status == 1
    assert len(out.splitlines()) == len(problems)
    assert all(line.isprintable() for line in out.splitlines())
    return problems


def test_every_file_of_the_folder_is_tried() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_small(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    problems = refused(capsys, FOLDER / f"{name}.yml")
    errors = {(p["line"], p["pointer"]) for p in problems if p["severity"] == "error"}
    assert SMALL[name] <= errors
    # Nothing in a manifest is run by looking at it.
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", LARGE)
def test_large(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "model.yml"
    path.write_bytes(LARGE[name]())
    problems = refused(capsys, path)
    assert len(problems) <= 201
    assert all(len(problem["message"]) < 400 for problem in problems)
