"""The schema files: valid, documented, and true about what the program writes."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mlbundle.errors import MlbundleError, UsageError
from mlbundle.manifest.model import DatasetSpec, ModelManifest, ModelSource, TensorSpec
from mlbundle.platforms import machine_facts
from mlbundle.resources import load_schema, resource_folder
from mlbundle.wire.events import EVENT_TYPES
from mlbundle.wire.job import Job, LimitsJob, ModelJob, job_from_document

NAMES = sorted(path.name.removesuffix(".schema.json") for path in resource_folder("schemas").glob("*.json"))


def errors(name: str, document: Any) -> list[str]:
    return [
        f"{e.json_path}: {e.message}" for e in Draft202012Validator(load_schema(name)).iter_errors(document)
    ]


def test_the_documents_we_promise_have_a_schema() -> None:
    assert {"bundle", "error", "event", "framework", "job", "machine", "model", "run", "validation"} <= set(
        NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_schema_is_valid_and_documented(name: str) -> None:
    schema = load_schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:mlbundle:schema:{name}:v1"
    assert schema["title"]
    assert schema["description"].endswith(".")
    assert schema["examples"]
    for example in schema["examples"]:
        assert errors(name, example) == []


def nested(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for item in schema for found in nested(item)]
    if not isinstance(schema, dict):
        return []
    return [
        schema,
        *(
            found
            for key, value in schema.items()
            if key not in {"examples", "const", "enum"}
            for found in nested(value)
        ),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_inner_examples_and_defaults_are_valid_too(name: str) -> None:
    root = load_schema(name)
    for schema in nested(root):
        values = [*schema.get("examples", []), *([schema["default"]] if "default" in schema else [])]
        if schema is root or not isinstance(schema.get("examples", []), list):
            continue
        validator = Draft202012Validator({**schema, "$defs": root.get("$defs", {})})
        for value in values:
            assert validator.is_valid(value), (schema.get("title"), value)


def keys(schema: dict[str, Any]) -> set[str]:
    return set(schema["properties"])


def fields(cls: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def test_model_schema_and_values_know_the_same_keys() -> None:
    schema = load_schema("model")
    assert keys(schema) == fields(ModelManifest)
    for definition, cls in (("tensor", TensorSpec), ("source", ModelSource), ("dataset", DatasetSpec)):
        assert keys(schema["$defs"][definition]) == fields(cls)


def test_our_manifests_refuse_unknown_keys_everywhere_but_in_attributes_and_measurements() -> None:
    for name in ("model", "framework"):
        for schema in nested(load_schema(name)):
            if schema.get("type") == "object" and "properties" in schema:
                free = schema.get("title") in {"Attributes", "Training dataset", "Measurement"}
                assert ("additionalProperties" not in schema) == free, schema.get("title")


@pytest.mark.parametrize("kind", sorted(EVENT_TYPES))
def test_events_have_the_fields_the_schema_says(kind: str) -> None:
    branches = {
        b["if"]["properties"]["kind"]["const"]: b["then"]["properties"] for b in load_schema("event")["allOf"]
    }
    assert set(branches) == set(EVENT_TYPES)
    assert set(branches[kind]) == fields(EVENT_TYPES[kind]) - {"t_ns", "seq", "source"}


def test_unknown_kinds_of_events_are_allowed() -> None:
    assert errors("event", {"protocol": 1, "seq": 0, "source": "host", "t_ns": 1, "kind": "later"}) == []
    assert errors("event", {"protocol": 1, "seq": 0, "source": "host", "t_ns": 1, "kind": "phase"}) != []


def test_a_job_is_what_the_schema_says_and_its_example_is_a_job() -> None:
    job = Job(
        run_id="20261120T142503Z-7f3a9c",
        model=ModelJob("onnxruntime", {"graph": "m.onnx"}, ({"type": "image", "steps": []},), ()),
        dataset=None,
        scenario={"name": "online", "options": {}},
        accuracy=None,
        limits=LimitsJob(),
        paths={"assets": "/a", "scratch": "/tmp"},
    )
    assert errors("job", _as_json(job.to_document())) == []
    example = load_schema("job")["examples"][0]
    assert job_from_document(example).model.predictor == "onnxruntime"


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_errors_and_facts_are_what_their_schemas_say() -> None:
    assert errors("error", UsageError("x", where="w", hint="h").to_document()) == []
    assert errors("error", MlbundleError("x").to_document()) == []
    facts = {"$defs": {}, **load_schema("machine")["properties"]["machine"]}
    assert Draft202012Validator(facts).is_valid(machine_facts().to_document())


def test_the_operators_of_the_schema_are_the_ones_we_ship() -> None:
    shipped = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text("utf-8"))
    names = shipped["project"]["entry-points"]["mlbundle.operators"]
    assert keys(load_schema("model")["$defs"]["step"]) == set(names)
