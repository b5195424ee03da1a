"""What must hold for a data folder whatever was killed and whatever failed; and models to pack."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from mlbundle.store.entries import LibraryEntry
from mlbundle.store.library import Library, missing_blobs

LOCKS = {".lock", ".write.lock"}
SHARED_BYTES = 1 << 20

MODEL = """\
name: {name}
version: {version}
framework: {{name: onnxruntime, version: '>=1.0 <2'}}
inputs:
  - {{type: image, layer_name: input, element_type: float32, shape: [N, 4]}}
outputs:
  - {{type: probability, layer_name: output, element_type: float32, shape: [N, 2]}}
model: {{graph_path: net.onnx}}
dataset: {{format: directory, path: data, index: index.txt, samples: 1}}
"""


def write_model(folder: Path, name: str, version: str, weights: bytes, *, small_files: int = 1) -> Path:
    """Write a manifest folder: weights of its own, a file that all have, and a group of small ones."""
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    (folder / "model.yml").write_text(MODEL.format(name=name, version=version))
    (folder / "net.onnx").write_bytes(weights)
    (data / "index.txt").write_text("shared.bin 0\n")
    (data / "shared.bin").write_bytes(random.Random("shared").randbytes(SHARED_BYTES))
    for number in range(small_files):
        (data / f"small{number}.txt").write_text(f"{name} {version} {number}\n")
    return folder


def check_store(data: Path) -> list[LibraryEntry]:
    """Every name of the store keeps what it promises; returns the entries of the library."""
    library = Library(data)
    for path in library.store.whole.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        assert path.stat().st_mode & 0o777 == 0o444, f"{path} can be written to"
    entries, problems = library.scan()
    assert problems == []
    assert not (data / "quarantine").exists(), "something looked damaged"
    for entry in entries:
        assert missing_blobs(library.store, entry) == (), f"{entry.label} has lost blobs"
    return entries


def hidden(folder: Path) -> set[str]:
    """The names of files and folders below `folder` that only mlbundle knows: leftovers, but for the locks."""
    return {path.name for path in folder.rglob(".*") if path.name not in LOCKS}
