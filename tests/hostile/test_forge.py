"""The format document is enough to write a bundle: the forge, made from it alone, makes the bytes that `pack` makes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from bundle_forge import Forge, Referrer, arranged, further_path, images, report
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from mlbundle.bundle import compress
from mlbundle.bundle.assemble import with_images, with_referrers, write_archive
from mlbundle.bundle.content import BundleContent, Compression, EmbeddedSource, Role, SourceFile
from mlbundle.bundle.document import Asset, ImagePin
from mlbundle.bundle.overlay import MemoryBlobs
from mlbundle.bundle.pack import pack
from mlbundle.bundle.reader import open_bundle
from mlbundle.bundle.unpack import unpack
from mlbundle.bundle.verify import verify
from mlbundle.errors import UnsafePath

FILES = {
    "weights": {"model.onnx": b"weights " * 40, "Z.bin": b"", "a/b.data": b"\0" * 513},
    "labels": {"labels.txt": "null\nüñ\n".encode()},
    "docs": {"README.md": b"# read", "LICENSE": b"name: tiny\n"},
    "code": {"code/run.py": b"print()\n"},
    "data": {
        "data/é": b"e",
        "data/a.bin": b"A" * 700,
        "data/" + "n" * 101: b"no name of a tar",
        "data/" + "d" * 120 + "/" + "n" * 90: b"a prefix",
        "data/large": b"\1" * (1 << 20),
        "data/almost": b"\2" * ((1 << 20) - 1),
        "data/empty": b"",
    },
}
ROLES = {
    "weights": Role.WEIGHT,
    "labels": Role.CONFIG,
    "docs": Role.DOC,
    "code": Role.CODE,
    "data": Role.DATASET,
}
MODES = {"code/run.py": "0755", "data/a.bin": "0755"}
PIN = {
    "architecture": "amd64",
    "accelerator": "tpu",
    "image": "example/none:1.0-tpu",
    "digest": "sha256:" + "ab" * 32,
}


def sources(files: dict[str, dict[str, bytes]]) -> list[SourceFile]:
    return [
        SourceFile(path, ROLES[kind], data, int(MODES.get(path, "0644"), 8))
        for kind, held in files.items()
        for path, data in held.items()
    ]


def content(forge: Forge, files: dict[str, dict[str, bytes]], compression: Compression) -> BundleContent:
    """What `pack` takes for the content of a forge that was built."""
    return BundleContent(
        forge.name,
        forge.version,
        *forge.framework,
        (
            SourceFile("mlbundle/model.yml", Role.MODEL, forge.model_yaml),
            SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, forge.framework_yaml),
            *(
                SourceFile(further_path(name), Role.FRAMEWORK, yaml)
                for name, _, yaml in reversed(forge.further)
            ),
            *sources(files),
        ),
        assets=tuple(Asset(**asset) for asset in forge.assets),
        images=tuple(
            ImagePin(**{("size_bytes" if key == "size" else key): value for key, value in pin.items()})
            for pin in forge.table_of_images
        ),
        embedded=tuple(embedded(forge)),
        compression=compression,
        description=forge.description,
        license=forge.licence,
        frameworks=tuple((name, version) for name, version, _ in forge.further),
    )


def embedded(forge: Forge) -> list[EmbeddedSource]:
    """The images of a forge as `pack` is given them."""
    found = []
    places = [(None, forge.images), *forge.further_images.items()]
    for framework, accelerator in [(name, accelerator) for name, held in places for accelerator in held]:
        platforms = dict(places)[framework][accelerator]
        (index, *manifests), configs, layers, _ = Forge(images={accelerator: platforms})._images()
        blobs = MemoryBlobs({hashlib.sha256(data).hexdigest(): data for data in layers})
        order = tuple((hashlib.sha256(data).hexdigest(), len(data)) for data in layers)
        found.append(
            EmbeddedSource(accelerator, index, tuple(manifests), tuple(configs), order, blobs, framework)
        )
    return found


def same(forge: Forge, files: dict[str, dict[str, bytes]], folder: Path, **options: bool) -> bytes:
    """Check that `pack` makes what the forge makes, and that it is sound; return it."""
    forged = forge.build()
    pack(content(forge, files, Compression(**options)), folder / "packed.mlb")
    assert (folder / "packed.mlb").read_bytes() == forged
    verify(folder / "packed.mlb")
    return forged


def test_plain_bundle(tmp_path: Path) -> None:
    forge = arranged(
        **FILES,  # type: ignore[arg-type]
        modes=MODES,
        version="1.0.0+b.2",
        licence="Apache-2.0",
        description="a < b & c > d \u2013 ü",
        pins=[PIN],
    )
    same(forge, FILES, tmp_path)
    unpack(tmp_path / "packed.mlb", tmp_path / "out")
    for path, data in (item for held in FILES.values() for item in held.items()):
        assert (tmp_path / "out" / path).read_bytes() == data
        assert (tmp_path / "out" / path).stat().st_mode & 0o777 == int(MODES.get(path, "0644"), 8)


def test_bundle_with_images_of_two_architectures_and_two_accelerators(tmp_path: Path) -> None:
    forge = arranged(**FILES, modes=MODES, images=images("cpu", "cuda"), pins=[PIN])  # type: ignore[arg-type]
    same(forge, FILES, tmp_path)


FURTHER = [
    ("TF", "2.21.0", b"name: TF\nversion: 2.21.0\n"),
    ("tf-lite", "1.0", b"name: tf-lite\nversion: 1.0\n"),
    ("torch", "2.13.0+cpu", b"name: torch\nversion: 2.13.0+cpu\n"),
]


@pytest.mark.parametrize("order", [FURTHER, FURTHER[::-1]], ids=["as_listed", "reversed"])
def test_bundle_with_images_of_further_frameworks(
    tmp_path: Path, order: list[tuple[str, str, bytes]]
) -> None:
    """Layers go by path and images by name, whatever order they are given in."""
    further_images = {"torch": images("cuda", "cpu"), "tf-lite": images("cpu"), "tf": images("cpu")}
    forge = arranged(
        **FILES,  # type: ignore[arg-type]
        modes=MODES,
        version="1.0.0+b.2",
        images=images("cpu"),
        further=order,
        further_images=further_images,
        pins=[{"framework": "torch", **PIN}, PIN],
    )
    same(forge, FILES, tmp_path)
    with open_bundle(tmp_path / "packed.mlb") as reader:
        assert [layer.path for layer in reader.layers[4:7]] == [
            "mlbundle/frameworks/tf-lite.yml",
            "mlbundle/frameworks/tf.yml",
            "mlbundle/frameworks/torch.yml",
        ]
        assert reader.document.frameworks == (
            ("tf-lite", "1.0"),
            ("TF", "2.21.0"),
            ("torch", "2.13.0+cpu"),
        )
        assert dict(reader.further_frameworks) == {name.lower(): yaml for name, _, yaml in FURTHER}
        assert [(image.framework, image.accelerator) for image in reader.images] == [
            *((None, "cpu"), ("tf", "cpu"), ("tf-lite", "cpu"), ("torch", "cpu"), ("torch", "cuda"))
        ]
        write_archive(reader, tmp_path / "copy.mlb")
    assert (tmp_path / "copy.mlb").read_bytes() == (tmp_path / "packed.mlb").read_bytes()
    unpack(tmp_path / "packed.mlb", tmp_path / "out")
    for name, _, yaml in FURTHER:
        assert (tmp_path / "out" / further_path(name)).read_bytes() == yaml


def test_bundle_with_compressed_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compress, "WORTHWHILE_BYTES", 0)
    files = {
        **FILES,
        "weights": {"model.onnx": b"weights " * 400},
        "data": {"data/a": bytes(range(256)) * 90},
    }
    forge = arranged(**files, modes=MODES, compress_group=True, compress_weights=True)  # type: ignore[arg-type]
    forged = same(forge, files, tmp_path, weights=True)
    assert forged.count(b"+zstd") == 2


def referrers() -> list[Referrer]:
    many = Referrer(
        "application/vnd.example.many",
        [("text/plain", b"one"), ("text/plain", b"two")],
        config=("application/vnd.example.config", b"[1]"),
        annotations={"b": "2", "a": "1 < 2"},
    )
    return [report(), many, report("bad")]


def test_referrers_are_put_where_the_document_says(tmp_path: Path) -> None:
    forge = arranged(**FILES, modes=MODES, images=images("cpu"), referrers=referrers())  # type: ignore[arg-type]
    whole = forge.build()
    bare = arranged(**FILES, modes=MODES, images=images("cpu")).build()  # type: ignore[arg-type]
    (tmp_path / "bare.mlb").write_bytes(bare)
    added = []
    for kind in reversed(forge.referrers):
        held = {hashlib.sha256(data).hexdigest(): data for _, data in (kind.config, *kind.layers)}
        added.append((kind.manifest(forge.subject), held))
    with open_bundle(tmp_path / "bare.mlb") as reader:
        write_archive(reader, tmp_path / "copy.mlb")
        write_archive(with_referrers(reader, added), tmp_path / "whole.mlb")
        write_archive(with_images(reader, []), tmp_path / "lean.mlb")
    assert (tmp_path / "copy.mlb").read_bytes() == bare
    assert (tmp_path / "whole.mlb").read_bytes() == whole
    with open_bundle(tmp_path / "lean.mlb") as lean, open_bundle(tmp_path / "whole.mlb") as full:
        assert lean.manifest_digest == full.manifest_digest
        assert lean.images == ()
        assert len(full.referrers) == 3


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
trees = st.fixed_dictionaries(
    {kind: st.dictionaries(paths, st.binary(max_size=1200), max_size=4) for kind in ROLES}
)

frameworks = st.lists(
    st.from_regex(r"[A-Za-z0-9]{1,6}([._-][A-Za-z0-9]{1,6}){0,3}", fullmatch=True).filter(
        lambda name: name.lower() != "none"
    ),
    max_size=3,
    unique_by=str.lower,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(trees, st.booleans(), frameworks)
def test_any_files(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[str, dict[str, bytes]],
    attach: bool,
    further: list[str],
) -> None:
    """Whatever the files, the two writers agree to the byte."""
    flat = [path for held in files.values() for path in held]
    forge = arranged(
        **files,
        assets=[],
        images=images("cpu") if attach else {},
        further=[(name, "1", f"name: {name}\nversion: 1\n".encode()) for name in further],
        further_images={name.lower(): images("cpu") for name in further if attach},
    )
    forge.build()
    try:
        if len(set(flat)) != len(flat):
            raise UnsafePath("twice")
        same(forge, files, tmp_path_factory.mktemp("any"))
    except UnsafePath:
        reject()
