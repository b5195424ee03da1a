"""The same content is the same bytes: in another folder, by another user, on another day, with another Python."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import IN_CI, ROOT, command_line

from mlbundle.bundle.content import BundleContent, Compression, Role, SourceFile
from mlbundle.bundle.document import Asset, ImagePin
from mlbundle.bundle.pack import pack
from mlbundle.bundle.reader import open_bundle

MODEL = """\
name: Same İıé
version: 1.0.0+a
description: "ß & <é>"
license: MIT
framework: {name: onnxruntime, version: '>=1.0 <2'}
inputs:
  - {type: image, layer_name: input, element_type: float32, shape: [N, 4]}
outputs:
  - {type: probability, layer_name: output, element_type: float32, shape: [N, 2]}
model: {graph_path: Net.onnx}
dataset: {format: directory, path: data, index: index.txt, samples: 2}
"""

GOLDEN_FILE = "c31883fd933dcb12355f1f14da6611ba34d002daf83b1a2c1e4815f7f1a29e0c"
GOLDEN_MANIFEST = "sha256:b5636470c936e04cc429b2656e5fa6e429b2bc5293e7df470575182828930e89"
"""A change of one of these breaks everyone's references: it needs a new version of the format."""


def files() -> dict[str, bytes]:
    """A tree whose bundle has raw layers, a group that is compressed, and names that locales order differently."""
    few_symbols = bytes(value & 15 for value in range(256))
    found = {
        "model.yml": MODEL.encode(),
        "Net.onnx": random.Random(1).randbytes((4 << 20) + 12345),
        "README.md": b"# read me\n",
        "LICENSE": b"as you like\n",
        "data/index.txt": b"I.bin 0\ni.bin 1\n",
        "data/large.bin": random.Random(2).randbytes(1 << 20),
    }
    for number, name in enumerate(("I", "i", "\u0131", "\u0130", "é", "z", "Z", "a-b", "a.b", "ab")):
        data = random.Random(number).randbytes(1_000_000).translate(few_symbols)
        # File systems that fold case would make one file of two.
        found[f"data/{number}/{name}.bin"] = data
    found["data/I.bin"] = b"I"
    return found


def write(folder: Path, names: list[str], content: dict[str, bytes], *, mode: int, mtime_s: float) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content[name])
        path.chmod(mode)
        os.utime(path, (mtime_s, mtime_s))


def packed(folder: Path, target: Path, *, umask: int = 0o022, **environment: str) -> str:
    """The sha256 of what the command writes for a folder."""
    done = subprocess.run(
        command_line("pack", folder, "-o", target),
        capture_output=True,
        text=True,
        umask=umask,
        env={**os.environ, "MLBUNDLE_HOME": str(target.with_suffix(".home")), **environment},
    )
    assert done.returncode == 0, done.stderr
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    with open_bundle(target) as reader:
        kinds = {layer.media_type.rpartition(".model.")[2] for layer in reader.layers}
    target.unlink()
    # What is compared is worth comparing.
    assert kinds == {"code.v1.raw", "weight.v1.raw", "doc.v1.raw", "dataset.v1.raw", "dataset.v1.tar+zstd"}
    return digest


@pytest.fixture(scope="module")
def content() -> dict[str, bytes]:
    return files()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, content: dict[str, bytes]) -> Path:
    folder = tmp_path_factory.mktemp("one") / "net"
    write(folder, list(content), content, mode=0o644, mtime_s=1e9)
    return folder


@pytest.fixture(scope="module")
def expected(one: Path) -> str:
    return packed(one, one.parent / "one.mlb", LC_ALL="C", PYTHONHASHSEED="1")


def test_another_folder_order_time_mode_and_umask(
    tmp_path: Path, content: dict[str, bytes], expected: str
) -> None:
    folder = tmp_path / "an other place" / "é"
    write(folder, list(reversed(content)), content, mode=0o600, mtime_s=1.7e9)
    assert packed(folder, tmp_path / "t.mlb", umask=0o077) == expected


@pytest.mark.parametrize(
    "environment",
    [
        {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "77", "TZ": "Asia/Kolkata"},
        # Upper and lower case are other letters there; where it is not installed this is C again.
        {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8", "SOURCE_DATE_EPOCH": "1700000000"},
    ],
)
def test_another_language_and_time(
    one: Path, tmp_path: Path, expected: str, environment: dict[str, str]
) -> None:
    assert packed(one, tmp_path / "t.mlb", **environment) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no way to choose processors here")
def test_one_processor_or_all(one: Path, tmp_path: Path, expected: str) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert packed(one, tmp_path / "t.mlb") == expected
    finally:
        os.sched_setaffinity(0, before)


def test_another_byte_is_another_bundle(tmp_path: Path, content: dict[str, bytes], expected: str) -> None:
    """The comparisons above can fail."""
    other = {**content, "data/I.bin": b"J"}
    write(tmp_path / "net", list(other), other, mode=0o644, mtime_s=1e9)
    assert packed(tmp_path / "net", tmp_path / "t.mlb") != expected


def every_kind(large: Path) -> BundleContent:
    """Every kind of layer that needs no libzstd: chunks, two groups, a raw dataset, names that need care."""
    block = bytes(range(256)) * 4095
    small = [SourceFile(f"data/{number:03}.bin", Role.DATASET, block) for number in range(65)]
    return BundleContent(
        "Every <kind> é",
        "1.0.0+x",
        "none",
        "1.0",
        (
            SourceFile("mlbundle/model.yml", Role.MODEL, b"name: every\n"),
            SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, b"name: none\n"),
            SourceFile("large.bin", Role.WEIGHT, large),
            SourceFile("net.onnx", Role.WEIGHT, b"graph" * 999),
            SourceFile("labels.txt", Role.CONFIG, b"zero\none\n"),
            SourceFile("README.md", Role.DOC, b"# read me\n"),
            SourceFile("code/run.sh", Role.CODE, b"#!/bin/sh\n", mode=0o755),
            SourceFile("data/é&.bin", Role.DATASET, b"\0" * 513),
            SourceFile("data/raw.bin", Role.DATASET, block * 2),
            SourceFile("data/" + "n" * 101, Role.DATASET, b"no ustar name"),
            *small,
        ),
        assets=(Asset("/model/graph_path", "net.onnx"), Asset("/dataset/path", "data")),
        images=(
            ImagePin("arm64", "cpu", "example/none:1.0", "sha256:" + "cd" * 32),
            ImagePin("amd64", "cpu", "example/none:1.0", config="sha256:" + "ab" * 32, size_bytes=12),
        ),
        compression=Compression(groups=False),
        description="a <b> & c\u2028d\te",
        license="MIT",
    )


def test_the_bytes_of_every_kind_of_layer_have_not_changed(tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as stream:
        stream.truncate((64 << 20) + 7)
    done = pack(every_kind(large), tmp_path / "t.mlb")
    with open_bundle(tmp_path / "t.mlb") as reader:
        assert [chunks.path for chunks in reader.document.chunks] == ["large.bin"]
        assert [layer.path for layer in reader.layers if layer.tar] == [
            "mlbundle/groups/dataset-0000.tar",
            "mlbundle/groups/dataset-0001.tar",
        ]
    with (tmp_path / "t.mlb").open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    assert (found, done.manifest_digest) == (GOLDEN_FILE, GOLDEN_MANIFEST)


GOLDEN_FRAMEWORKS = "sha256:378b54c0c84303af2082fab71b93e6255b482e4d27b2d0baf101cc4c66447b92"


def test_the_bytes_of_several_frameworks_have_not_changed(tmp_path: Path) -> None:
    made = BundleContent(
        "several",
        "1.0.0",
        "none",
        "1.0",
        (
            SourceFile("mlbundle/frameworks/tf.yml", Role.FRAMEWORK, b"name: TF\n"),
            SourceFile("mlbundle/frameworks/tf-lite.yml", Role.FRAMEWORK, b"name: tf-lite\n"),
            SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, b"name: none\n"),
            SourceFile("mlbundle/model.yml", Role.MODEL, b"name: several\n"),
            SourceFile("net.onnx", Role.WEIGHT, b"graph"),
        ),
        images=(
            ImagePin("amd64", "gpu", "example/lite:1", "sha256:" + "ef" * 32, framework="tf-lite"),
            ImagePin("amd64", "cpu", "example/tf:1", "sha256:" + "cd" * 32, framework="tf"),
            ImagePin("arm64", "cpu", "example/none:1", "sha256:" + "ab" * 32),
        ),
        frameworks=(("TF", "2.0"), ("tf-lite", "2.1")),
    )
    done = pack(made, tmp_path / "t.mlb")
    assert done.manifest_digest == GOLDEN_FRAMEWORKS


SCRIPT = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from mlbundle.bundle.content import BundleContent, Compression, Role, SourceFile
from mlbundle.bundle.pack import pack
root, target = Path(sys.argv[2]), Path(sys.argv[3])
roles = {"Net.onnx": Role.WEIGHT, "README.md": Role.DOC, "LICENSE": Role.DOC}
names = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
files = [SourceFile(name, roles.get(name, Role.DATASET), root / name) for name in names if name != "model.yml"]
files.append(SourceFile("mlbundle/model.yml", Role.MODEL, (root / "model.yml").read_bytes()))
files.append(SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, b"name: none\\n"))
plain = Compression(groups=False)
done = pack(BundleContent("n", "1", "f", "1", tuple(files), compression=plain), target)
print(hashlib.sha256(target.read_bytes()).hexdigest(), done.manifest_digest)
"""


def interpreters() -> list[str]:
    """Other versions of Python, from 3.11 on, that start."""
    versions = [name for name in ("3.11", "3.12", "3.13", "3.14") if name != f"3.{sys.version_info.minor}"]
    installed = Path.home() / ".pyenv" / "versions"
    found = []
    for version in versions:
        candidates = [shutil.which(f"python{version}"), *map(str, installed.glob(f"{version}.*/bin/python"))]
        found += [path for path in candidates if path and starts(path)][:1]
    return found


def starts(path: str) -> bool:
    return subprocess.run([path, "-I", "-S", "-c", ""], capture_output=True).returncode == 0


def test_another_python_without_any_package(one: Path, tmp_path: Path) -> None:
    others = interpreters()
    if not others:
        # Only where a continuous integration offers other versions must they work.
        assert not (IN_CI and list((Path.home() / ".pyenv" / "versions").glob("3.1[2-9].*")))
        pytest.skip("there is no other Python from 3.11 on")
    answers = {}
    for number, path in enumerate((sys.executable, *others)):
        target = str(tmp_path / f"{number}.mlb")
        done = subprocess.run(
            [path, "-I", "-S", "-c", SCRIPT, str(ROOT), str(one), target], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        answers[path] = done.stdout
    assert len(set(answers.values())) == 1, answers
