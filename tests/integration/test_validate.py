"""`mlbundle validate` as users and scripts see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from jsonschema import Draft202012Validator

from mlbundle.resources import load_schema

if TYPE_CHECKING:
    from support import Cli

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def test_listings_are_valid_with_warnings(cli: Cli) -> None:
    done = cli("validate", GOLDEN / "listing1.yml", GOLDEN / "listing2.yml")
    assert done.status == 0
    assert len(done.stdout.splitlines()) == 8
    assert all(": warning: " in line for line in done.stdout.splitlines())
    assert "listing1.yml: valid as a model manifest (0 errors, 4 warnings)" in done.stderr
    assert "listing2.yml: valid as a framework manifest (0 errors, 4 warnings)" in done.stderr


def test_strict_makes_warnings_errors(cli: Cli) -> None:
    done = cli("validate", "--strict", "--json", GOLDEN / "listing2.yml")
    assert done.status == 1
    document = done.document()
    assert document["valid"] is False
    assert Draft202012Validator(load_schema("validation")).is_valid(document)


def test_json_lines_have_one_file_each(cli: Cli) -> None:
    done = cli("validate", "--format", "jsonl", GOLDEN / "listing1.yml", GOLDEN / "listing2.yml")
    assert [json.loads(line)["kind"] for line in done.stdout.splitlines()] == ["model", "framework"]


def test_a_folder_with_an_unpacked_bundle_has_its_manifest_in_mlbundle(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "out" / "mlbundle").mkdir(parents=True)
    (tmp_path / "out" / "mlbundle" / "model.yml").write_bytes((GOLDEN / "listing1.yml").read_bytes())
    done = cli("validate", "out")
    assert done.status == 0
    assert "out/mlbundle/model.yml: valid as a model manifest" in done.stderr


def test_a_folder_means_its_manifest(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model.yml").write_text("name: x\n")
    done = cli("validate", tmp_path)
    assert done.status == 1
    assert done.stdout.startswith(f"{tmp_path}/model.yml:1:1: error: the key 'version' is missing")


def test_a_missing_file_is_a_usage_error(cli: Cli) -> None:
    done = cli("validate", "--json", "nothing.yml")
    assert done.error(2, "reference-not-found")["where"] == "nothing.yml"


def test_no_file_is_a_usage_error(cli: Cli) -> None:
    assert cli("validate").status == 2
