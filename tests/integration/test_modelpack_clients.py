"""Bundles read as ModelPack clients read them: by the published specification alone, with no code of ours.

The rules are those of the CNCF ModelPack specification v1 (its config schema and its media types), of OCI image-spec
v1.1, and of what clients written in Go do with a document: decode it, encode it again, compare digests.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from registry_fixture import RealRegistry
from support import command_line, lacking

MODEL = """\
name: Tiny <Net> & more
version: 1.0.0
description: "reads <a> & writes \\u00e9"
license: Apache-2.0
framework: {name: onnxruntime, version: '>=1.0 <2'}
inputs:
  - {type: image, layer_name: input, element_type: float32, shape: [N, 4]}
outputs:
  - {type: probability, layer_name: output, element_type: float32, shape: [N, 2]}
model: {graph_path: net.onnx}
dataset: {format: directory, path: data, index: index.txt, samples: 2}
"""
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.cncf.model.manifest.v1+json"
CONFIG_TYPE = "application/vnd.cncf.model.config.v1+json"
LAYER_TYPES = {
    f"application/vnd.cncf.model.{kind}.v1.{form}"
    for kind in ("weight", "weight.config", "doc", "code", "dataset")
    for form in ("raw", "tar", "tar+gzip", "tar+zstd")
}
FILEPATH = "org.cncf.model.filepath"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# The fields of the Go structs, in their order; an upper-case type is another struct, and [] a list of it.
DESCRIPTOR = ["mediaType", "digest", "size", "urls", "annotations", "data", "platform", "artifactType"]
MANIFEST = ["schemaVersion", "mediaType", "artifactType", "config", "layers", "subject", "annotations"]
INDEX = ["schemaVersion", "mediaType", "artifactType", "manifests", "subject", "annotations"]
CONFIG = ["descriptor", "modelfs", "config"]
CONFIG_DESCRIPTOR = [
    "createdAt", "authors", "family", "name", "docURL", "sourceURL", "datasetsURL", "version", "revision",
    "vendor", "licenses", "title", "description",
]  # fmt: skip
CONFIG_CONFIG = ["architecture", "format", "paramSize", "precision", "quantization", "capabilities"]
CONFIG_MODELFS = ["type", "diffIds"]

Fetch = Callable[[str], bytes]


@dataclass(frozen=True)
class Model:
    """A model as a client has it: the manifest's bytes, and a way to get blobs by digest."""

    manifest: bytes
    blob: Fetch

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.manifest))

    @property
    def layers(self) -> list[dict[str, Any]]:
        return list(self.document["layers"])

    @property
    def config(self) -> bytes:
        return self.blob(self.document["config"]["digest"])


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def go_json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode()


def go_struct(value: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """The fields that a struct knows, in its order: others are lost; the keys of a map are sorted."""
    found = {name: value[name] for name in fields if name in value}
    if "annotations" in found:
        found["annotations"] = dict(sorted(found["annotations"].items()))
    return found


def again_manifest(data: bytes) -> bytes:
    document = go_struct(json.loads(data), MANIFEST)
    document["config"] = go_struct(document["config"], DESCRIPTOR)
    document["layers"] = [go_struct(layer, DESCRIPTOR) for layer in document["layers"]]
    return go_json(document)


def again_config(data: bytes) -> bytes:
    document = go_struct(json.loads(data), CONFIG)
    document["descriptor"] = go_struct(document["descriptor"], CONFIG_DESCRIPTOR)
    document["modelfs"] = go_struct(document["modelfs"], CONFIG_MODELFS)
    document["config"] = go_struct(document["config"], CONFIG_CONFIG)
    return go_json(document)


def again_index(data: bytes) -> bytes:
    document = go_struct(json.loads(data), INDEX)
    document["manifests"] = [go_struct(entry, DESCRIPTOR) for entry in document["manifests"]]
    return go_json(document)


def unzstd(data: bytes) -> bytes:
    if shutil.which("zstd") is None:
        lacking("zstd is not installed (Debian's package of that name)")
    done = subprocess.run(["zstd", "-dcq"], input=data, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights, documentation, a raw dataset file, and small ones whose group is worth compressing."""
    root = tmp_path_factory.mktemp("net") / "net"
    (root / "data").mkdir(parents=True)
    few_symbols = bytes(value & 7 for value in range(256))
    (root / "model.yml").write_text(MODEL)
    (root / "net.onnx").write_bytes(random.Random(1).randbytes(70_000).translate(few_symbols))
    (root / "README.md").write_text("# read me\n")
    (root / "data" / "index.txt").write_text("0.bin 0\n1.bin 1\n")
    (root / "data" / "large.bin").write_bytes(random.Random(2).randbytes((1 << 20) + 1))
    for number in range(9):
        data = random.Random(number).randbytes(900_000).translate(few_symbols)
        (root / "data" / f"{number}.bin").write_bytes(data)
    return root


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    target = folder.parent / "net.mlb"
    words = command_line("pack", folder, "--compress-weights", "-o", target)
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path, "r:") as archive:
        found = {}
        for member in archive:
            stream = archive.extractfile(member)
            assert stream is not None
            found[member.name] = stream.read()
        return found


@pytest.fixture(scope="module")
def layout(file: Path) -> dict[str, bytes]:
    return members(file)


def from_file(layout: dict[str, bytes]) -> Model:
    """What a client of OCI layouts finds: the first entry of the index, and blobs in their folder."""
    entry = json.loads(layout["index.json"])["manifests"][0]

    def blob(digest: str) -> bytes:
        return layout["blobs/" + digest.replace(":", "/")]

    return Model(blob(entry["digest"]), blob)


def from_registry(host: str, repository: str, tag: str) -> Model:
    """What a client of registries finds, with plain requests."""
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(path: str) -> bytes:
        request = urllib.request.Request(
            f"http://{host}/v2/{repository}/{path}", headers={"Accept": MANIFEST_TYPE}
        )
        with straight.open(request, timeout=60) as answer:
            return bytes(answer.read())

    return Model(get(f"manifests/{tag}"), lambda digest: get(f"blobs/{digest}"))


@pytest.fixture(scope="module", params=["file", "registry"])
def model(
    request: pytest.FixtureRequest, file: Path, layout: dict[str, bytes], registry: RealRegistry
) -> Model:
    if request.param == "file":
        return from_file(layout)
    words = command_line("push", file, f"{registry.host}/clients/net:v1", "--plain-http")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return from_registry(registry.host, "clients/net", "v1")


def plain(layer: dict[str, Any], data: bytes) -> bytes:
    return unzstd(data) if layer["mediaType"].endswith("+zstd") else data


def test_the_layout_leads_to_the_model_first(layout: dict[str, bytes]) -> None:
    assert json.loads(layout["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(layout["index.json"])
    assert (index["schemaVersion"], index["mediaType"]) == (2, "application/vnd.oci.image.index.v1+json")
    first = index["manifests"][0]
    assert (first["mediaType"], first["artifactType"]) == (MANIFEST_TYPE, ARTIFACT_TYPE)
    assert first["annotations"]["org.opencontainers.image.ref.name"] == "1.0.0"
    assert [e["artifactType"] for e in index["manifests"]].count(ARTIFACT_TYPE) == 1
    for name, data in layout.items():
        if name.startswith("blobs/"):
            assert name == "blobs/" + sha256(data).replace(":", "/")


def test_the_manifest_is_one_of_a_model(model: Model) -> None:
    document = model.document
    assert (document["schemaVersion"], document["mediaType"]) == (2, MANIFEST_TYPE)
    assert document["artifactType"] == ARTIFACT_TYPE
    assert document["config"]["mediaType"] == CONFIG_TYPE
    types = [layer["mediaType"] for layer in document["layers"]]
    assert set(types) <= LAYER_TYPES
    # The samples have what is worth looking at.
    assert {t.partition(".model.")[2] for t in types} == {
        "code.v1.raw", "weight.v1.tar+zstd", "doc.v1.raw", "dataset.v1.raw", "dataset.v1.tar+zstd",
    }  # fmt: skip
    for descriptor in (document["config"], *document["layers"]):
        data = model.blob(descriptor["digest"])
        assert (sha256(data), len(data)) == (descriptor["digest"], descriptor["size"])
    paths = [layer["annotations"][FILEPATH] for layer in document["layers"]]
    assert all(paths)
    assert len(set(paths)) == len(paths)


def test_the_config_is_one_by_the_schema(model: Model) -> None:
    config = json.loads(model.config)
    assert set(config) == {"descriptor", "modelfs", "config"}
    assert set(config["descriptor"]) <= set(CONFIG_DESCRIPTOR)
    assert set(config["config"]) <= set(CONFIG_CONFIG)
    assert set(config["modelfs"]) == {"type", "diffIds"}
    assert config["modelfs"]["type"] == "layers"
    for name in ("name", "version", "description"):
        assert isinstance(config["descriptor"][name], str)
        assert config["descriptor"][name]
    assert config["descriptor"]["licenses"] == ["Apache-2.0"]
    assert config["config"] == {"format": "onnx"}
    assert all(DIGEST.fullmatch(digest) for digest in config["modelfs"]["diffIds"])


def test_diff_ids_are_the_digests_of_the_layers_before_compression(model: Model) -> None:
    found = [sha256(plain(layer, model.blob(layer["digest"]))) for layer in model.layers]
    assert json.loads(model.config)["modelfs"]["diffIds"] == found
    assert found != [layer["digest"] for layer in model.layers]


def test_documents_survive_decoding_and_encoding(model: Model, layout: dict[str, bytes]) -> None:
    assert again_manifest(model.manifest) == model.manifest
    assert again_config(model.config) == model.config
    assert b"\\u003cNet\\u003e \\u0026" in model.config
    assert again_index(layout["index.json"]) == layout["index.json"]
    digest = json.loads(layout["index.json"])["manifests"][0]["digest"]
    assert sha256(model.manifest) == digest


def test_pulling_gives_the_files(model: Model, folder: Path, tmp_path: Path) -> None:
    """A client writes each raw layer to its path and extracts each tar into the folder."""
    target = tmp_path / "pulled"
    for layer in model.layers:
        data = plain(layer, model.blob(layer["digest"]))
        if layer["mediaType"].endswith(".raw"):
            path = target / layer["annotations"][FILEPATH]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        else:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                archive.extractall(target, filter="data")
    ours = target / "mlbundle"
    assert (ours / "model.yml").read_bytes() == (folder / "model.yml").read_bytes()
    assert {path.name for path in ours.iterdir()} == {
        "bundle.json", "files.jsonl", "model.yml", "framework.yml",
    }  # fmt: skip
    shutil.rmtree(ours)
    assert contents(target) == {k: v for k, v in contents(folder).items() if k != "model.yml"}


def contents(root: Path) -> dict[str, str]:
    return {p.relative_to(root).as_posix(): sha256(p.read_bytes()) for p in root.rglob("*") if p.is_file()}


def test_a_list_of_tags_shows_the_model_alone(file: Path, registry: RealRegistry, tmp_path: Path) -> None:
    """Without images and signatures nothing but the version is in the repository."""
    words = command_line("push", file, f"{registry.host}/clients/alone", "--plain-http")
    assert subprocess.run(words, capture_output=True).returncode == 0
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with straight.open(f"http://{registry.host}/v2/clients/alone/tags/list", timeout=60) as answer:
        assert json.loads(answer.read()) == {"name": "clients/alone", "tags": ["1.0.0"]}
