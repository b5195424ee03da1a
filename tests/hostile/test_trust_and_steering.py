"""Signatures that were moved, swapped or removed; YAML that explodes; images that want to choose how they run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attack_cases import run
from bundle_forge import Forge, Image, Referrer, compact, images, member, report, sha256, tar
from support import make_bundle

from mlbundle.bundle.content import EmbeddedSource
from mlbundle.bundle.document import ImagePin
from mlbundle.bundle.overlay import MemoryBlobs
from mlbundle.bundle.pack import pack
from mlbundle.errors import UsageError
from mlbundle.platforms import this_architecture
from mlbundle.runs.packing import collect
from mlbundle.signing import keys, sigstore
from mlbundle.signing.referrers import Subject, parse_referrer

OUR_LABEL = "io.mlbundle.run"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    keys.generate(tmp_path / "key")
    return tmp_path / "key"


def signature(forge: Forge, key: Path, *, subject: dict[str, Any] | None = None) -> Referrer:
    """A real signature over the manifest of a forge, attached to it or to another `subject`."""
    forge.build()
    about = Subject(forge.subject["mediaType"], forge.subject["digest"], forge.subject["size"])
    made = sigstore.sign(about, "tiny:1.0.0", keys.load_private(key))
    document = json.loads(made.manifest)
    if subject is not None:
        document["subject"] = subject
    layers = [(layer.media_type, made.blobs[layer.hex]) for layer in parse_referrer(made.manifest).layers]
    return Referrer(document["artifactType"], layers, edit=lambda _: compact(document))


def signed(box: Path, change: Callable[[Forge], Forge], key: Path) -> list[str]:
    """Write what `change` makes of a signed bundle; return how it is verified."""
    forge = Forge()
    forge.referrers = [signature(forge, key)]
    (box / "x.mlb").write_bytes(change(forge).build())
    return ["verify", "x.mlb", "--require-signature", "--key", f"{key}.pub"]


@pytest.mark.attack(20)
def test_a_signed_bundle_is_trusted(box: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = signed(box, lambda forge: forge, key)
    status, document = run(capsys, *arguments)
    assert (status, len(document["trust"]["signers"])) == (0, 1)


@pytest.mark.attack(20)
def test_a_removed_signature_is_missed(box: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = signed(box, lambda forge: replace(forge, referrers=[]), key)
    status, document = run(capsys, *arguments)
    assert (status, document["reference"]) == (1, "signature-missing")
    assert run(capsys, "verify", "x.mlb")[0] == 0


@pytest.mark.attack(20)
def test_a_signature_of_another_bundle_is_no_signature(
    box: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is, it does not even belong into the file; attached anew, it says the digest of the other."""
    other = Forge(model_yaml=b"name: other\n")
    stolen = signature(other, key)
    arguments = signed(box, lambda forge: replace(forge, referrers=[stolen]), key)
    status, document = run(capsys, *arguments)
    assert (status, document["reference"]) == (5, "bundle-corrupt")

    victim = Forge()
    victim.build()
    moved = signature(other, key, subject=victim.subject)
    arguments = signed(box, lambda forge: replace(forge, referrers=[moved]), key)
    status, document = run(capsys, *arguments)
    assert (status, document["reference"]) == (5, "signature-invalid")


@pytest.mark.attack(20)
def test_a_signature_by_somebody_else_is_not_enough(
    box: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.generate(tmp_path / "other")
    arguments = signed(box, lambda forge: forge, tmp_path / "other")
    arguments[-1] = f"{key}.pub"
    status, document = run(capsys, *arguments)
    assert (status, document["reference"]) == (1, "signature-missing")


@pytest.mark.attack(20)
def test_a_report_that_calls_itself_a_signature_is_none(
    box: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
    for layers in ([(kind, b"{}")], [(kind, b"[" * 100_000)], [("text/plain", b"fine")], []):
        fake = Referrer(kind, layers)
        arguments = signed(box, lambda forge, fake=fake: replace(forge, referrers=[fake]), key)
        status, document = run(capsys, *arguments)
        assert (status, document["schema"]) in {(1, "mlbundle/error/v1"), (5, "mlbundle/error/v1")}
        assert document["reference"] in {"signature-missing", "signature-invalid", "bundle-corrupt"}


@pytest.mark.attack(20)
def test_a_signature_among_very_many_referrers(
    box: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody may add referrers, so their number must not keep the signature from being found."""

    def crowd(forge: Forge) -> Forge:
        return replace(forge, referrers=[*forge.referrers, *(report(str(number)) for number in range(990))])

    arguments = signed(box, crowd, key)
    assert run(capsys, "verify", "x.mlb")[0] == 0
    status, document = run(capsys, *arguments)
    assert (status, len(document["trust"]["signers"])) == (0, 1)


LAUGHS = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%b]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)
)
YAML_BOMBS = {
    "laughs": LAUGHS,
    "laughs_in_flow": b"{a: &a {x: 1}, b: &b {<<: *a, y: *a}, c: [*b, *b, *b, *b]}\n",
    "recursion": b"a: &a [*a, *a]\n",
    "depth": b"[" * 500_000,
    "depth_of_blocks": b"".join(b" " * n + b"a:\n" for n in range(1000)),
    "depth_of_dashes": b"- " * 250_000 + b"x\n",
    "tag": b"!!python/object/apply:os.system [touch loaded.txt]\n",
    "twice": b"name: a\nname: b\n",
    "merge": b"<<: {name: x}\n",
    "many_documents": b"---\n" * 200_000,
    "long_key": b"? " + b"k" * 900_000 + b"\n: v\n",
    "many_keys": b"".join(b"k%d: v\n" % n for n in range(60_000)),
    "long_number": b"version: " + b"9" * 900_000 + b"\n",
    "anchors": b"".join(b"k%d: &a%d x\n" % (n, n) for n in range(40_000)),
    "nul": b"name: \0\n",
    "not_utf8": b"name: \xff\xfe\n",
    "utf16": "name: x\n".encode("utf-16"),
}


@pytest.mark.attack(15)
@pytest.mark.parametrize("bomb", YAML_BOMBS)
def test_a_yaml_bomb_does_not_go_off_in_diff(
    bomb: str, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (box / "good.mlb").write_bytes(Forge().build())
    (box / "bomb.mlb").write_bytes(
        Forge(model_yaml=YAML_BOMBS[bomb], framework_yaml=YAML_BOMBS[bomb]).build()
    )
    status, document = run(capsys, "diff", "good.mlb", "bomb.mlb")
    assert (status, document["schema"]) == (1, "mlbundle/diff/v1")
    assert {change["section"] for change in document["changes"]} <= {"model", "framework", "claims"}
    assert len(json.dumps(document)) < 20 * (len(YAML_BOMBS[bomb]) + 1000)
    assert not list(box.rglob("loaded.txt"))


@pytest.mark.attack(15)
@pytest.mark.parametrize("bomb", YAML_BOMBS)
def test_a_yaml_bomb_is_no_manifest_to_run(bomb: str, box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (box / "bomb.mlb").write_bytes(Forge(model_yaml=YAML_BOMBS[bomb]).build())
    status, document = run(capsys, "run", "--dry-run", "--runtime", "process", "--trust", "bomb.mlb")
    assert status in {1, 2, 5}, document
    assert document["schema"] in {"mlbundle/error/v1", "mlbundle/validation/v1"}
    assert document.get("reference") != "mlbundle-error"
    assert not list(box.rglob("loaded.txt"))


@pytest.mark.attack(15)
@pytest.mark.parametrize("bomb", [*YAML_BOMBS, "over_1_mib", "empty", "folder", "pipe"])
def test_a_yaml_bomb_is_no_trust_policy(bomb: str, box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (box / "good.mlb").write_bytes(Forge().build())
    policy = box / "trust.yml"
    if bomb == "folder":
        policy.mkdir()
    elif bomb == "pipe":
        os.mkfifo(policy)
    else:
        policy.write_bytes({**YAML_BOMBS, "over_1_mib": b"#" * (2 << 20), "empty": b""}[bomb])
    status, document = run(capsys, "verify", "good.mlb", "--trust", "trust.yml")
    assert (status, document["reference"]) == (2, "usage"), document
    assert not list(box.rglob("loaded.txt"))


@pytest.mark.attack(18)
@pytest.mark.parametrize(
    "bad",
    [
        {"image": "--privileged"},
        {"image": "a b"},
        {"image": "x\x1b[2J"},
        {"image": "../x"},
        {"image": ""},
        {"accelerator": "../x"},
        {"architecture": "--x"},
    ],
)
def test_what_no_reader_takes_no_writer_makes(bad: dict[str, str], tmp_path: Path) -> None:
    values = {"architecture": "amd64", "accelerator": "cpu", "image": "x", "digest": "sha256:" + "a" * 64}
    content = collect(make_bundle(tmp_path / "m"))
    with pytest.raises(UsageError, match="can't be pinned"):
        pack(replace(content, images=(ImagePin(**{**values, **bad}),)), tmp_path / "x.mlb")
    assert not (tmp_path / "x.mlb").exists()


@pytest.mark.attack(18)
def test_the_names_of_images_do_not_steer_the_terminal(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (box / "x.mlb").write_bytes(Forge(images=images("cpu"), referrers=[report("\x1b[2J\u202e")]).build())
    for command in ("inspect", "verify"):
        assert run(capsys, command, "x.mlb")[0] == 0


WISHES: dict[str, Any] = {
    "User": "0:0",
    "Env": ["LD_PRELOAD=/evil.so", "PYTHONPATH=/evil", "HOME=/evil", "PYTHONHASHSEED=7"],
    "Entrypoint": ["/evil"],
    "Cmd": ["--privileged"],
    "WorkingDir": "/evil",
    "Labels": {OUR_LABEL: "evil"},
    "ExposedPorts": {"1/tcp": {}},
    "Healthcheck": {"Test": ["CMD", "/evil"], "Interval": 1_000_000_000},
    "StopSignal": "SIGCONT",
}


def hostile_image(wishes: dict[str, Any]) -> Image:
    layer = tar([member("evil.so", b"evil")])
    config = {
        "architecture": this_architecture(),
        "os": "linux",
        "config": wishes,
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(layer)]},
    }
    return Image(compact(config), [("application/vnd.oci.image.layer.v1.tar", layer)])


def carrying(image: Image, folder: Path, path: Path) -> str:
    """Write a bundle that can be run and carries this image; return the id of the image."""
    content = collect(make_bundle(folder))
    alone = Forge(images={"cpu": {this_architecture(): image}})
    (index, manifest), (config,), layers, _ = alone._images()
    blobs = {hashlib.sha256(data).hexdigest(): data for data in layers}
    order = tuple((key, len(data)) for key, data in blobs.items())
    source = EmbeddedSource("cpu", index, (manifest,), (config,), order, MemoryBlobs(blobs))
    values = {("size_bytes" if name == "size" else name): v for name, v in alone.table_of_images[0].items()}
    pack(replace(content, images=(ImagePin(**values),), embedded=(source,)), path)
    return "sha256:" + sha256(image.config)


@pytest.fixture
def forgotten(engine: Any) -> Iterator[list[str]]:
    """Images by id that are to be gone at the end."""
    ids: list[str] = []
    yield ids
    for name in ids:
        engine.images.remove(name, force=True)


@pytest.mark.attack(18)
@pytest.mark.engine
def test_an_image_does_not_choose_how_it_runs(
    box: Path, engine: Any, forgotten: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The container is asked for in the same words, whatever the config of the image says."""
    asked = []
    for name, wishes in (("plain", {}), ("evil", WISHES)):
        image_id = carrying(hostile_image(wishes), box / name, box / f"{name}.mlb")
        forgotten.append(image_id)
        status, plan = run(capsys, "run", "--dry-run", f"{name}.mlb")
        assert status == 0, plan
        arguments = plan["container"]
        assert arguments.pop("image") == image_id
        assert arguments.pop("labels") == {OUR_LABEL: plan["run_id"]}
        mounts = arguments["host_config"].pop("mounts")
        assert [(one["Type"], one["ReadOnly"]) for one in mounts] == [("bind", True)] * 2
        asked.append(arguments)
    assert asked[0] == asked[1]
    assert set(asked[0]) == {
        *("entrypoint", "command", "user", "working_dir", "hostname", "environment", "host_config"),
        "healthcheck",
    }
    assert asked[0]["user"] == "65534:65534"
    assert asked[0]["healthcheck"] == {"test": ["NONE"]}


@pytest.mark.engine
@pytest.mark.attack(18)
def test_an_image_that_declares_volumes_is_not_run(
    box: Path, capsys: pytest.CaptureFixture[str], forgotten: list[str]
) -> None:
    """An engine makes a volume writable, whatever the root is."""
    forgotten.append(carrying(hostile_image({"Volumes": {"/evil": {}}}), box / "evil", box / "evil.mlb"))
    status, document = run(capsys, "run", "--runtime", "docker", "--dry-run", "evil.mlb")
    assert (status, document["reference"]) == (5, "image-mismatch")
    assert "/evil" in document["message"]


def edited(change: Callable[[dict[str, Any]], Any]) -> Image:
    image = hostile_image({})
    document = json.loads(image.config)
    result = change(document)
    return replace(image, config=result if isinstance(result, bytes) else compact(document))


def diff_ids(*values: Any) -> Callable[[dict[str, Any]], None]:
    def edit(document: dict[str, Any]) -> None:
        document["rootfs"]["diff_ids"] = list(values)

    return edit


BAD_IMAGES: dict[str, tuple[int, str, Callable[[], Image]]] = {
    "no_json": (16, "bundle-corrupt", lambda: edited(lambda _: b"MZ\0\0")),
    "depth": (16, "bundle-corrupt", lambda: edited(lambda _: b'{"x":' * 2000 + b"1" + b"}" * 2000)),
    "key_twice": (16, "bundle-corrupt", lambda: edited(lambda d: b'{"rootfs":{},' + compact(d)[1:])),
    "nan": (16, "bundle-corrupt", lambda: edited(lambda d: b'{"x":NaN,' + compact(d)[1:])),
    "no_layers_in_config": (16, "bundle-corrupt", lambda: edited(lambda d: d.pop("rootfs") and None)),
    "diff_id_as_path": (9, "bundle-corrupt", lambda: edited(diff_ids("sha256:../../../etc/passwd"))),
    "diff_id_of_sha512": (9, "bundle-corrupt", lambda: edited(diff_ids("sha512:" + "a" * 128))),
    "diff_id_of_another_layer": (10, "digest-mismatch", lambda: edited(diff_ids("sha256:" + "a" * 64))),
    "two_diff_ids": (11, "bundle-corrupt", lambda: edited(diff_ids(*["sha256:" + "a" * 64] * 2))),
    "over_4_mib": (12, "bundle-corrupt", lambda: edited(lambda d: compact(d) + b" " * (5 << 20))),
}


@pytest.mark.engine
@pytest.mark.parametrize("bad", BAD_IMAGES)
def test_a_broken_image_is_never_given_to_the_engine(
    bad: str,
    box: Path,
    engine: Any,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    attack, reference, make = BAD_IMAGES[bad]
    record_property("attack", attack)
    image_id = carrying(make(), box / "m", box / "x.mlb")
    status, document = run(capsys, "run", "--dry-run", "x.mlb")
    assert (status, document["reference"]) == (5, reference), document
    assert image_id not in {image["Id"] for image in engine.api.images(all=True)}
