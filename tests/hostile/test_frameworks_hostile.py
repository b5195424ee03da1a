"""Bundles with several framework manifests from strangers: names that lead elsewhere, images of another framework."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_cases import Case, Cases, refuse, run
from bundle_forge import LABELS, REF_NAME, WEIGHT, Edit, Forge, images

CASES = Cases()
case, add = CASES.case, CASES.put

TF = ("tf", "2.0", b"name: tf\nversion: 2.0\n")
TORCH = ("Torch", "2.1", b"name: Torch\nversion: 2.1\n")
DIGEST = "sha256:" + "ab" * 32


def forge(**values: Any) -> Forge:
    """A sound bundle of three frameworks, two of which have images."""
    sound: dict[str, Any] = {
        "further": [TF, TORCH],
        "images": images("cpu"),
        "further_images": {"torch": images("cpu")},
    }
    return Forge(**{**sound, **values})


def in_list(change: Callable[[list[Any]], Any]) -> Edit:
    """Change the list of further frameworks."""

    def edit(document: Any) -> None:
        document["frameworks"] = change(document["frameworks"])

    return edit


def in_manifest(change: Callable[[list[Any]], None]) -> Edit:
    """Change the list of layers."""
    return lambda document: change(document["layers"])


def named(layer: Any, path: str) -> None:
    layer["annotations"] = {"org.cncf.model.filepath": path, "org.opencontainers.image.title": path}


def pin(**values: Any) -> dict[str, Any]:
    return {"architecture": "amd64", "accelerator": "tpu", "image": "example/x:1", "digest": DIGEST, **values}


# Names, which become paths and tags.
for label, name in {
    "parent": "../evil",
    "folder": "a/b",
    "backslash": "a\\b",
    "hidden": ".hidden",
    "dot_last": "torch.",
    "two_dots": "a..b",
    "two_hyphens": "a--b",
    "option": "--privileged",
    "hyphen_last": "torch-",
    "space": "a b",
    "newline": "torch\n",
    "nul": "torch\0",
    "not_ascii": "t\u00f6rch",
    "kelvin": "\u212aeras",
    "long": "x" * 65,
    "empty": "",
}.items():
    further = [(name, "1", b"name: x\n")]
    add(f"name_{label}", 1, lambda further=further: Forge(further=further).build())
add("name_of_a_device", 1, lambda: Forge(further=[("con", "1", b"")]).build(), "unsafe-path")
add(
    "name_that_is_a_number",
    16,
    lambda: forge(edit_bundle=in_list(lambda _: [{"name": 1, "version": "1"}])).build(),
)
for label, name in {"as_it_is": "none", "in_another_case": "NONE"}.items():
    twice = [(name, "1.0", b"name: none\n")]
    add(f"name_of_the_top_level_{label}", 5, lambda twice=twice: Forge(further=twice).build())
add("name_twice", 5, lambda: forge(further=[TF, TORCH, TORCH]).build())
add("name_twice_in_two_cases", 5, lambda: forge(further=[TF, TORCH, ("torch", *TORCH[1:])]).build())
add(
    "seventeen_names",
    12,
    lambda: Forge(further=[(f"f{number:02}", "1", b"%d" % number) for number in range(17)]).build(),
)

# The list in bundle.json against the layers.
LISTS: dict[str, Callable[[list[Any]], Any]] = {
    "empty": lambda _: [],
    "null": lambda _: None,
    "object": lambda _: {},
    "text": lambda _: "tf",
    "out_of_order": lambda found: found[::-1],
    "one_too_few": lambda found: found[:1],
    "one_too_many": lambda found: [*found, {"name": "zz", "version": "1"}],
    "another_name": lambda found: [found[0], {"name": "torch2", "version": "2.1"}],
    "without_version": lambda found: [found[0], {"name": "Torch"}],
    "empty_version": lambda found: [found[0], {"name": "Torch", "version": ""}],
    "unknown_key": lambda found: [found[0], {**found[1], "url": "http://x/"}],
}
for label, change in LISTS.items():
    add(
        f"list_{label}",
        16,
        lambda change=change: Forge(further=[TF, TORCH], edit_bundle=in_list(change)).build(),
    )


@case(16)
def empty_list_where_no_layer_is() -> bytes:
    def edit(document: Any) -> None:
        document["frameworks"] = []

    return Forge(edit_bundle=edit).build()


@case(16)
def layers_without_a_list() -> bytes:
    return Forge(further=[TF], edit_bundle=lambda document: document.pop("frameworks") and None).build()


LAYERS: dict[str, Callable[[list[Any]], None]] = {
    "out_of_order": lambda layers: layers.insert(4, layers.pop(5)),
    "twice": lambda layers: layers.insert(5, layers[4]),
    "missing": lambda layers: layers.pop(5) and None,
    "after_the_weights": lambda layers: layers.insert(6, layers.pop(5)),
    "before_the_first": lambda layers: layers.insert(3, layers.pop(4)),
    "of_another_type": lambda layers: layers[4].update(mediaType=WEIGHT),
    "of_another_path": lambda layers: named(layers[5], "mlbundle/frameworks/other.yml"),
    "in_another_case": lambda layers: named(layers[5], "mlbundle/frameworks/Torch.yml"),
    "outside": lambda layers: named(layers[5], "mlbundle/frameworks/../../evil"),
}
for label, change_layers in LAYERS.items():
    add(
        f"layer_{label}",
        5 if label == "twice" else 1,
        lambda change_layers=change_layers: forge(edit_manifest=in_manifest(change_layers)).build(),
    )


@case(1)
def asset_in_the_folder_of_frameworks() -> bytes:
    return forge(raw=[("model.onnx", WEIGHT, b"x"), ("mlbundle/frameworks/x.yml", LABELS, b"x")]).build()


@case(1)
def table_names_another_path() -> bytes:
    def edit(rows: Any) -> Any:
        for row in rows:
            row["path"] = row["path"].replace("frameworks/torch", "frameworks/tosca")
        return sorted(rows, key=lambda row: row["path"].encode())

    return forge(edit_table=edit).build()


# Manifests that say something else than bundle.json: policies go by the one, runs by the other.
for label, yaml in {"name": b"name: torch\nversion: 2.1\n", "version": b"name: Torch\nversion: 9\n"}.items():
    told = ("Torch", "2.1", yaml)
    add(
        f"manifest_of_another_{label}",
        15,
        lambda told=told: forge(further=[TF, told]).build(),
        seen_by_inspect=False,
    )


@case(12)
def manifest_over_the_cap() -> bytes:
    return forge(further=[TF, ("Torch", "2.1", b"#" * ((1 << 20) + 1))]).build()


# The framework table.
for label, value in {
    "unknown": "mxnet",
    "of_the_top_level": "none",
    "in_upper_case": "Torch",
    "path": "../torch",
    "empty": "",
}.items():
    add(f"pin_{label}", 18, lambda value=value: forge(pins=[pin(framework=value)]).build())


@case(16)
def pin_of_null() -> bytes:
    return forge(edit_bundle=lambda document: document["images"].append(pin(framework=None))).build()


add("pin_twice", 5, lambda: forge(pins=[pin(framework="tf"), pin(framework="tf")]).build())
add(
    "pins_out_of_order",
    16,
    lambda: forge(edit_bundle=lambda document: document["images"].reverse()).build(),
)
add("pin_where_there_is_no_further_framework", 18, lambda: Forge(pins=[pin(framework="torch")]).build())


# Embedded images: whose they are decides what runs.
def entry_named(place: int, name: str) -> Edit:
    def edit(document: Any) -> None:
        document["manifests"][place]["annotations"] = {REF_NAME: name}

    return edit


for label, name in {
    "of_the_top_level": "fw.cpu.1.0.0",
    "of_another": "fw.cpu-tf--1.0.0",
    "of_an_unknown_one": "fw.cpu-mxnet--1.0.0",
    "of_the_top_level_by_name": "fw.cpu-none--1.0.0",
    "in_upper_case": "fw.cpu-Torch--1.0.0",
    "without_a_name": "fw.cpu---1.0.0",
    "with_one_hyphen": "fw.cpu-torch-1.0.0",
    "with_dots": "fw.torch.cpu.1.0.0",
    "of_another_version": "fw.cpu-torch--1.0.1",
    "of_another_accelerator": "fw.cuda-torch--1.0.0",
    "with_a_path": "fw.cpu-../torch--1.0.0",
    "twice": "fw.cpu-torch--torch--1.0.0",
}.items():
    add(f"image_{label}", 18, lambda name=name: forge(edit_index=entry_named(2, name)).build())


@case(18)
def images_of_two_frameworks_swapped() -> bytes:
    def edit(document: Any) -> None:
        first, second = document["manifests"][1:3]
        first["annotations"], second["annotations"] = second["annotations"], first["annotations"]
        document["manifests"][1:3] = [second, first]

    return forge(edit_index=edit, further_images={"torch": images("tpu")}, images=images("cpu")).build()


@case(16)
def image_of_a_further_framework_first() -> bytes:
    def edit(document: Any) -> None:
        document["manifests"][1:3] = document["manifests"][2:0:-1]

    return forge(edit_index=edit).build()


@pytest.mark.parametrize("broken", CASES.parameters())
def test_broken_frameworks_are_refused(broken: Case, box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuse(broken, box, capsys)


def test_the_bundle_of_the_cases_is_sound(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each case is refused for its fault alone."""
    (box / "good.mlb").write_bytes(forge(pins=[pin(framework="tf"), pin()]).build())
    for command in ("inspect", "verify", "unpack", "add"):
        assert run(capsys, command, "good.mlb")[0] == 0
    assert run(capsys, "verify", "good.mlb")[1]["images"] == [
        *("amd64/cpu", "arm64/cpu", "torch/amd64/cpu", "torch/arm64/cpu")
    ]


def test_sixteen_further_frameworks_are_not_too_many(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    further = [(f"f{number:02}", "1", b"version: '1' # %d\n" % number) for number in range(16)]
    (box / "many.mlb").write_bytes(Forge(further=further).build())
    assert run(capsys, "verify", "many.mlb")[0] == 0


def test_what_a_newer_version_adds_is_said_to_be_newer(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new key comes with layers that are not known either; the key is what tells the reason."""

    def edit_bundle(document: Any) -> None:
        document["tokenisers"] = [{"name": "x"}]

    def edit_manifest(document: Any) -> None:
        named(document["layers"][4], "mlbundle/tokenisers/x.yml")

    made = Forge(further=[TF], edit_bundle=edit_bundle, edit_manifest=edit_manifest)
    (box / "newer.mlb").write_bytes(made.build())
    for command in ("inspect", "verify", "unpack", "add"):
        status, document = run(capsys, command, "newer.mlb")
        assert (status, document["reference"]) == (5, "bundle-corrupt")
        assert "newer version" in document["hint"]
