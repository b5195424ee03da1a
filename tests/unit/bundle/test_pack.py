"""Packing and unpacking: the same bytes everywhere, and the same files back."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bundle_samples import content, tiny, tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlbundle.bundle.content import BundleContent, Role, SourceFile
from mlbundle.bundle.document import Asset, ImagePin
from mlbundle.bundle.pack import pack, preview
from mlbundle.bundle.paths import check_collisions, check_path
from mlbundle.bundle.plan import PlannedFile, make_plan, plan_groups
from mlbundle.bundle.reader import open_bundle
from mlbundle.bundle.unpack import unpack
from mlbundle.bundle.verify import verify
from mlbundle.errors import (
    AssetUnavailable,
    DigestMismatch,
    MlbundleError,
    SourceChanged,
    StorageFailed,
    UnsafePath,
    UsageError,
)
from mlbundle.manifest.model import Checksum

GOLDEN = "36ae6b5b61bd75cb79de5d7c76a107ea43f6a46482998a73d594b5e237df5fb0"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_bytes_of_the_format_have_not_changed(tmp_path: Path) -> None:
    """A change of this digest breaks everyone's references: it needs a new version of the format."""
    pack(tiny(), tmp_path / "t.mlb")
    assert sha256(tmp_path / "t.mlb") == GOLDEN


SCRIPT = """
import os, sys
from pathlib import Path
from mlbundle.bundle.content import BundleContent, Role, SourceFile
from mlbundle.bundle.pack import pack
folder = Path(sys.argv[1])
names = sorted(os.listdir(folder / "data"), reverse=len(sys.argv) > 3)
files = [SourceFile(f"data/{name}", Role.DATASET, folder / "data" / name) for name in names]
files += [SourceFile("mlbundle/model.yml", Role.MODEL, b"m"), SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, b"f")]
pack(BundleContent("n", "1", "f", "1", tuple(files)), Path(sys.argv[2]))
"""


def test_the_same_files_give_the_same_bytes_in_another_place(tmp_path: Path) -> None:
    """Folder, times, owner's mode bits, umask, locale, hash seed and order of files do not matter."""
    for number, folder in enumerate((tmp_path / "one", tmp_path / "an other" / "two")):
        (folder / "data").mkdir(parents=True)
        for name in ("b", "é", "a", "Z"):
            path = folder / "data" / name
            path.write_bytes(name.encode() * 100)
            path.chmod(0o644 - number * 0o44)
            os.utime(path, (1e9 * number, 1e9 * number))
        environment = {
            **os.environ,
            "LC_ALL": ("C", "C.UTF-8")[number],
            "PYTHONHASHSEED": str(number),
            "TZ": f"UTC{number}",
        }
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(folder), str(folder / "t.mlb"), *(["reverse"] * number)],
            check=True,
            env=environment,
            umask=(0o022, 0o077)[number],
        )
    assert sha256(tmp_path / "one" / "t.mlb") == sha256(tmp_path / "an other" / "two" / "t.mlb")


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12)
trees = st.dictionaries(
    st.lists(names, min_size=1, max_size=4).map("/".join), st.binary(max_size=3000), max_size=8
)


def packable(files: dict[str, bytes]) -> bool:
    try:
        check_collisions(["mlbundle/x", *(check_path(path) for path in files)])
    except UnsafePath:
        return False
    return not any(path.casefold().startswith("mlbundle/") for path in files)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.filter_too_much,
    ],
)
@given(trees.filter(packable), st.sampled_from([Role.WEIGHT, Role.CONFIG, Role.DOC, Role.CODE, Role.DATASET]))
def test_every_tree_comes_back(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], role: Role
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    sources = [SourceFile(path, role, data) for path, data in files.items()]
    packed = pack(content(*sources), folder / "t.mlb")
    assert packed.size_bytes == (folder / "t.mlb").stat().st_size
    assert verify(folder / "t.mlb").manifest_digest == packed.manifest_digest
    unpacked = unpack(folder / "t.mlb", folder / "out")
    assert unpacked.set_digest == packed.set_digest
    documents = {"mlbundle/model.yml": b"name: tiny\n", "mlbundle/framework.yml": b"name: none\n"}
    assert tree(folder / "out") == {**files, **documents}
    again = [SourceFile(path, role, folder / "out" / path) for path in files]
    assert pack(content(*again), folder / "again.mlb").manifest_digest == packed.manifest_digest


def test_identical_files_are_stored_once(tmp_path: Path) -> None:
    once = pack(content(SourceFile("a.bin", Role.WEIGHT, bytes(3 << 20))), tmp_path / "1.mlb")
    many = [SourceFile(f"{n}.bin", role, bytes(3 << 20)) for n in range(2) for role in (Role.WEIGHT,)]
    many += [
        SourceFile("d.bin", Role.DATASET, bytes(3 << 20)),
        SourceFile("m.txt", Role.DOC, b"name: tiny\n"),
    ]
    twice = pack(content(*many), tmp_path / "2.mlb")
    assert twice.size_bytes < once.size_bytes + 8192
    unpack(tmp_path / "2.mlb", tmp_path / "out")
    assert (tmp_path / "out" / "d.bin").read_bytes() == bytes(3 << 20)
    assert (tmp_path / "out" / "m.txt").read_bytes() == b"name: tiny\n"


def test_equal_manifests_are_stored_once(tmp_path: Path) -> None:
    files = (
        SourceFile("mlbundle/model.yml", Role.MODEL, b"x"),
        SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, b"x"),
    )
    pack(BundleContent("n", "1", "f", "1", files), tmp_path / "t.mlb")
    assert verify(tmp_path / "t.mlb").name == "n"


def test_small_files_share_layers_and_large_ones_do_not() -> None:
    mib = 1 << 20
    files = [SourceFile(f"data/{n:03}", Role.DATASET, bytes(mib - 512)) for n in range(70)]
    files += [
        SourceFile("data/large", Role.DATASET, bytes(mib)),
        SourceFile("data/" + "n" * 101, Role.DATASET, b"no ustar name"),
        SourceFile("weights", Role.WEIGHT, b"small"),
    ]
    layers = make_plan(content(*files)).data_layers
    assert [(layer.path, len(layer.files)) for layer in layers] == [
        ("weights", 1),
        ("data/large", 1),
        ("data/" + "n" * 101, 1),
        ("mlbundle/groups/dataset-0000.tar", 63),
        ("mlbundle/groups/dataset-0001.tar", 7),
    ]
    assert layers[3].size_bytes == 63 * mib + 1024 <= 64 * mib


def test_groups_are_numbered_in_the_order_of_layers() -> None:
    """More than a thousand groups, without a byte of data: the sizes are made up."""
    files = [SourceFile(f"{n:05}", Role.DATASET, b"") for n in range(1100)]
    small = [PlannedFile(file, (1 << 20) - 512, None) for file in files for _ in range(63)]
    paths = [layer.path for layer in plan_groups(small)]
    assert len(paths) == 1100
    assert paths == sorted(paths)


def test_modes_survive(tmp_path: Path) -> None:
    files = (
        SourceFile("run.sh", Role.CODE, b"x", mode=0o755),
        SourceFile("d/run.sh", Role.DATASET, b"x", mode=0o755),
    )
    pack(content(*files), tmp_path / "t.mlb")
    unpack(tmp_path / "t.mlb", tmp_path / "out")
    for name in ("run.sh", "d/run.sh"):
        assert (tmp_path / "out" / name).stat().st_mode & 0o700 == 0o700
    assert (tmp_path / "out" / "mlbundle" / "model.yml").stat().st_mode & 0o700 == 0o600


def test_preview_says_what_pack_does_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(5 << 20))
    made = content(SourceFile("w", Role.WEIGHT, tmp_path / "w"), SourceFile("x", Role.DATASET, b"x"))
    seen = preview(made)
    assert os.listdir(tmp_path) == ["w"]
    packed = pack(made, tmp_path / "t.mlb")
    assert (seen.manifest_digest, seen.set_digest, seen.size_bytes, seen.files) == (
        packed.manifest_digest,
        packed.set_digest,
        packed.size_bytes,
        packed.files,
    )


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(9 << 20))
    calls: list[tuple[int, int]] = []
    made = content(SourceFile("w", Role.WEIGHT, tmp_path / "w"))
    pack(made, tmp_path / "t.mlb", lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert len(calls) > 2
    assert calls[-1] == (9 << 20, 9 << 20)
    for work in (
        lambda report: verify(tmp_path / "t.mlb", report),
        lambda report: unpack(tmp_path / "t.mlb", tmp_path / "out", report),
    ):
        calls.clear()
        work(lambda done, total: calls.append((done, total)))
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        assert calls[-1][0] == calls[-1][1] > 9 << 20


@pytest.mark.parametrize("algorithm", ["sha256", "sha1", "md5"])
def test_stated_checksums_are_checked(algorithm: str, tmp_path: Path) -> None:
    right = hashlib.new(algorithm, b"weights").hexdigest()
    wrong = hashlib.new(algorithm, b"Weights").hexdigest()
    source = SourceFile("w", Role.WEIGHT, b"weights", checksum=Checksum(algorithm, right))
    pack(content(source), tmp_path / "t.mlb")
    source = SourceFile(
        "w", Role.WEIGHT, b"weights", checksum=Checksum(algorithm, wrong), pointer="model.yml#/model"
    )
    with pytest.raises(DigestMismatch) as refused:
        pack(content(source), tmp_path / "u.mlb")
    assert refused.value.where == "model.yml#/model"
    assert right in refused.value.message
    assert os.listdir(tmp_path) == ["t.mlb"]


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "w"
    for change in ("grow", "shrink", "touch", "replace"):
        path.write_bytes(bytes(9 << 20))

        def meddle(done: int, _total: int, change: str = change) -> None:
            if done == 4 << 20:
                if change == "touch":
                    os.utime(path, (1, 1))
                elif change == "replace":
                    path.unlink()
                    path.write_bytes(bytes(9 << 20))
                else:
                    os.truncate(path, (10 if change == "grow" else 5) << 20)

        if change == "replace":
            # The open file is still the one that was planned: all its bytes are the planned ones.
            pack(content(SourceFile("w", Role.WEIGHT, path)), tmp_path / "t.mlb", meddle)
            continue
        with pytest.raises(SourceChanged):
            pack(content(SourceFile("w", Role.WEIGHT, path)), tmp_path / "t.mlb", meddle)
        assert os.listdir(tmp_path) == ["w"]


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "t.mlb"
    target.write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        pack(tiny(), target)
    assert target.read_text() == "precious"
    pack(tiny(), target, overwrite=True)
    assert sha256(target) == GOLDEN


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "t.mlb"
    with pytest.raises(UsageError, match="exists already"):
        pack(tiny(), target, lambda _done, _total: target.write_text("precious"))
    assert target.read_text() == "precious"
    assert os.listdir(tmp_path) == ["t.mlb"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_an_interruption_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    def stop(_done: int, _total: int) -> None:
        raise error

    with pytest.raises(error if error is not OSError else (OSError, StorageFailed)):
        pack(tiny(), tmp_path / "t.mlb", stop)
    assert os.listdir(tmp_path) == []
    pack(tiny(), tmp_path / "t.mlb")
    with pytest.raises(error if error is not OSError else StorageFailed):
        unpack(tmp_path / "t.mlb", tmp_path / "out", stop)
    with pytest.raises(error):
        verify(tmp_path / "t.mlb", stop)
    assert os.listdir(tmp_path) == ["t.mlb"]


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from bundle_samples import content
from mlbundle.bundle.content import Role, SourceFile
from mlbundle.bundle.pack import pack
from mlbundle.bundle.unpack import unpack
def die(done, total):
    if done > total // 2:
        os.kill(os.getpid(), signal.SIGKILL)
folder = Path(sys.argv[2])
source = content(SourceFile("w", Role.WEIGHT, bytes(9 << 20)), SourceFile("v", Role.WEIGHT, b"v"))
if sys.argv[3] == "pack":
    pack(source, folder / "t.mlb", die)
else:
    pack(source, folder / "t.mlb")
    unpack(folder / "t.mlb", folder / "out", die)
"""


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_a_kill_leaves_no_visible_half(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path), command], check=False
    )
    assert done.returncode == -9
    visible = [name for name in os.listdir(tmp_path) if not name.startswith(".")]
    assert visible == ([] if command == "pack" else ["t.mlb"])
    source = content(SourceFile("w", Role.WEIGHT, bytes(9 << 20)), SourceFile("v", Role.WEIGHT, b"v"))
    pack(source, tmp_path / "t.mlb", overwrite=True)
    unpack(tmp_path / "t.mlb", tmp_path / "out")


def bad(*files: SourceFile, **values: object) -> BundleContent:
    return content(*files, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda p: bad(SourceFile("../x", Role.WEIGHT, b"")), UnsafePath),
        (lambda p: bad(SourceFile("mlbundle/x", Role.CODE, b"")), UnsafePath),
        (lambda p: bad(SourceFile("MLBundle/x", Role.CODE, b"")), UnsafePath),
        (lambda p: bad(SourceFile("x", Role.CODE, b""), SourceFile("X", Role.CODE, b"")), UnsafePath),
        (lambda p: bad(SourceFile("x", Role.WEIGHT, p / "missing")), AssetUnavailable),
        (lambda p: bad(SourceFile("x", Role.WEIGHT, p)), AssetUnavailable),
        (lambda p: bad(version="1.0 beta"), UsageError),
        (lambda p: bad(version=""), UsageError),
        (lambda p: bad(assets=(Asset("/model/graph_path", "x"),)), UsageError),
        (lambda p: bad(images=(ImagePin("amd64", "cpu", "x", "sha256:1"),)), UsageError),
        (lambda p: bad(SourceFile("mlbundle/model.yml", Role.MODEL, b"")), UsageError),
        (lambda p: BundleContent("n", "1", "f", "1", ()), UsageError),
        (lambda p: BundleContent("n\n", "1", "f", "1", tiny().files), UsageError),
    ],
)  # fmt: skip
def test_content_that_makes_no_bundle_is_refused(
    made: object, error: type[MlbundleError], tmp_path: Path
) -> None:
    with pytest.raises(error):
        pack(made(tmp_path), tmp_path / "t.mlb")  # type: ignore[operator]
    assert os.listdir(tmp_path) == []


def test_a_fifo_is_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AssetUnavailable, match="no regular file"):
        pack(content(SourceFile("x", Role.WEIGHT, tmp_path / "pipe")), tmp_path / "t.mlb")


def test_a_manifest_over_4_mib_is_refused() -> None:
    """Registries take no larger manifests; nothing is read before that is known."""
    files = [SourceFile(f"{n:06}.bin", Role.WEIGHT, b"") for n in range(17_000)]
    with pytest.raises(UsageError, match="4 MiB"):
        preview(content(*files))


def test_missing_folders_are_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        pack(tiny(), tmp_path / "no" / "t.mlb")
    pack(tiny(), tmp_path / "t.mlb")
    with pytest.raises(UsageError, match="does not exist"):
        unpack(tmp_path / "t.mlb", tmp_path / "no" / "out")


def test_the_reader_gives_the_documents_of_the_author(tmp_path: Path) -> None:
    pack(tiny(), tmp_path / "t.mlb")
    with open_bundle(tmp_path / "t.mlb") as reader:
        assert (reader.model_yaml, reader.framework_yaml) == (b"name: tiny\n", b"name: none\n")
        assert reader.document.assets == (Asset("/model/graph_path", "model.onnx"),)
