"""`mlbundle validate` as users and scripts see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from jsonschema import Draft202012Validator
from support import make_bundle

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


def test_a_predictor_beside_the_manifest_is_looked_at(cli: Cli, tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle")
    with (folder / "model.yml").open("a") as manifest:
        manifest.write("predictor: predictor.py\n")
    # Where it is not there, packing says so.
    assert cli("validate", folder).status == 0
    (folder / "predictor.py").write_text("import os\n\nclass Predictor:\n    def open(self, model): ...\n")
    done = cli("validate", folder)
    assert done.status == 1
    place = f"{folder}/predictor.py:4:5: error: /predictor: "
    assert done.stdout.splitlines()[-1].startswith(place + "Predictor.open is not called so")
    document = cli("validate", folder, "--json").document()
    assert Draft202012Validator(load_schema("validation")).is_valid(document)
    assert document["valid"] is False
    # One that leads out of the folder is none of ours.
    (folder / "predictor.py").unlink()
    (folder / "predictor.py").symlink_to("/etc/passwd")
    assert cli("validate", folder).status == 0


def test_a_file_called_framework_is_a_framework_manifest_whatever_it_lacks(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "framework.yml").write_text("name: torch\nversion: 2.13.0\n")
    done = cli("validate", tmp_path)
    assert "one of the keys 'containers' or 'python' is missing" in done.stdout
    assert "not valid as a framework manifest" in done.stderr
    (tmp_path / "framework.yml").write_text("name: torch\nversion: 2.13.0\ninputs: []\n")
    assert "as a model manifest" in cli("validate", tmp_path / "framework.yml").stderr
