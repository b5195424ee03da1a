"""Any value at any place of any document: the bundle is refused with a typed error, or every command agrees on it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_forge import WEIGHT_ZSTD, Forge, Referrer, images
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlbundle.bundle.diff import diff
from mlbundle.bundle.inspect import inspect_reader
from mlbundle.bundle.reader import open_bundle
from mlbundle.bundle.unpack import unpack
from mlbundle.bundle.verify import verify
from mlbundle.errors import IntegrityError

DOCUMENTS = (
    "table",
    "bundle",
    "config",
    "manifest",
    "image_index",
    "image_manifest",
    "pin",
    "index",
    "referrer",
)
GONE = object()

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.sampled_from([0, 1, 2, 511, 512, (1 << 63) - 1, 1 << 33])
    | st.text(max_size=8)
    | st.sampled_from([
        *("", ".", "..", "../x", "/x", "a/b", "mlbundle/x", "data/a.bin", "model.onnx", "0644", "0755", "4755"),
        *("sha256:" + "0" * 64, "sha512:" + "0" * 128, "x\0y", "\ud800", "x" * 300),
        "application/vnd.cncf.model.weight.v1.raw",
        "application/vnd.cncf.model.dataset.v1.tar+zstd",
        "application/vnd.oci.image.index.v1+json",
    ])
)  # fmt: skip
values = (
    scalars | st.just(GONE) | st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=4), scalars)
)


def places(document: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*here, key)
        if isinstance(value, dict | list):
            yield from places(value, (*here, key))


def mutated(document: Any, number: int, value: Any, how: int) -> Any:
    """Put a value at a place, or repeat or take out what is there, or turn a list round."""
    changed = copy.deepcopy(document)
    known = list(places(changed))
    *parents, last = known[number % len(known)]
    holder = changed
    for key in parents:
        holder = holder[key]
    if how == 0 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[last]))
    elif how == 1 and isinstance(holder, list):
        holder.reverse()
    elif value is GONE:
        del holder[last]
    else:
        holder[last] = value
    return changed


def forge(which: str, number: int, value: Any, how: int) -> Forge:
    def edit(document: Any) -> Any:
        return mutated(document, number, value, how)

    made = images("cpu", "cuda")
    referrer = Referrer("application/vnd.example.x", [("text/plain", b"x")])
    whole = Forge(
        raw=[("model.onnx", WEIGHT_ZSTD, b"weights " * 40)],
        compress_group=True,
        images=made,
        further=[("torch", "2.0", b"name: torch\n")],
        further_images={"torch": images("cpu")},
        referrers=[referrer],
    )
    if which in {"pin", "image_manifest"}:
        setattr(made["cpu"]["amd64"], f"edit_{which.removeprefix('image_')}", edit)
    elif which == "referrer":
        referrer.edit = edit
    else:
        setattr(whole, f"edit_{which}", edit)
    return whole


@pytest.mark.attack(16)
@pytest.mark.parametrize("which", DOCUMENTS)
@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(number=st.integers(0, 400), value=values, how=st.integers(0, 5))
def test_a_changed_document_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, which: str, number: int, value: Any, how: int
) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    path = folder / "x.mlb"
    try:
        data = forge(which, number, value, how).build()
    except (KeyError, TypeError, AttributeError, ValueError):
        return  # The forge can't write it: a row without its path, a pin without its architecture.
    path.write_bytes(data)
    try:
        checked = verify(path)
    except IntegrityError:
        with pytest.raises(IntegrityError):
            use(path, folder / "out")
        assert not (folder / "out").exists()
        return
    use(path, folder / "out")
    assert {entry.path for entry in checked.files} == {
        found.relative_to(folder / "out").as_posix()
        for found in (folder / "out").rglob("*")
        if found.is_file()
    }


def use(path: Path, out: Path) -> None:
    """What other commands do with a bundle."""
    with open_bundle(path) as reader, open_bundle(path) as again:
        inspect_reader(reader)
        assert diff(reader, again).changes == ()
    unpack(path, out)
