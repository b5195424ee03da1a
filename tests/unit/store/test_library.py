"""The library: an entry only after its blobs, references that mean one bundle, damage that stops nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlbundle.errors import BundleCorrupt, DigestMismatch, ReferenceNotFound, StorageFailed, UsageError
from mlbundle.store.collect import du, gc
from mlbundle.store.entries import LibraryEntry, parse_entry
from mlbundle.store.find import find_entry
from mlbundle.store.library import Library
from mlbundle.store.partial import BLOCK_BYTES


def hex_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Blobs:
    """A source of blobs in memory; `lies` are served instead of what the digest names."""

    name = "memory"

    def __init__(self, *blobs: bytes, lies: dict[str, bytes] | None = None) -> None:
        self.blobs = {hex_of(blob): blob for blob in blobs} | (lies or {})
        self.read: list[str] = []

    @property
    def table(self) -> list[tuple[str, int]]:
        return [(hexadecimal, len(blob)) for hexadecimal, blob in self.blobs.items()]

    def size_of(self, hexadecimal: str) -> int | None:
        return len(self.blobs[hexadecimal]) if hexadecimal in self.blobs else None

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        return self.blobs[hexadecimal][offset : offset + size_bytes]

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        self.read.append(hexadecimal)
        view[:] = self.blobs[hexadecimal][offset : offset + len(view)]

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        return f"memory, {hexadecimal}, byte {offset}"

    def close(self) -> None:
        pass


def add(
    library: Library, source_of: Blobs, name: str = "mini", version: str = "1.0.0", **changes
) -> LibraryEntry:
    manifest = hex_of(f"{name} {version}".encode())
    arguments = {
        "name": name,
        "version": version,
        "manifest_digest": f"sha256:{manifest}",
        "set_digest": f"sha256:{hex_of(b'set')}",
        "index": b'{"schemaVersion":2}',
        "blobs": source_of.table,
        "source": "mini-1.0.0.mlb",
        "reader": source_of,
    }
    return library.add(**{**arguments, **changes})


def made(name: str, version: str, manifest: str = "") -> LibraryEntry:
    return LibraryEntry(
        name=name,
        version=version,
        manifest_digest=f"sha256:{manifest or hex_of(f'{name} {version}'.encode())}",
        set_digest=f"sha256:{hex_of(b'set')}",
        added_at="2026-11-20T14:25:03Z",
        source="somewhere",
        index=b"{}",
        blobs=((hex_of(b"one"), 3),),
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def library(data: Path) -> Library:
    return Library(data)


BIG = bytes(range(256)) * 12_000


def test_a_bundle_that_was_added_is_listed_with_all_its_bytes(library: Library, data: Path) -> None:
    blobs = Blobs(b"one", b"", BIG)
    heard: list[tuple[int, int]] = []
    entry = add(library, blobs, progress=lambda done, total: heard.append((done, total)))
    assert Library(data).entries() == [entry]
    assert entry.index == b'{"schemaVersion":2}'
    assert dict(entry.blobs) == dict(blobs.table)
    assert entry.size_bytes == 3 + len(BIG)
    assert library.store.read_at(hex_of(BIG), 0, len(BIG)) == BIG
    assert heard[-1] == (entry.size_bytes, entry.size_bytes)
    assert heard == sorted(heard)
    document = json.loads((library.folder / f"{entry.manifest_hex}.json").read_bytes())
    assert document == entry.to_document()
    assert document["schema"] == "mlbundle/library-entry/v1"
    assert document["size"] == entry.size_bytes


def test_blobs_that_are_here_are_not_read_again(library: Library) -> None:
    add(library, Blobs(b"one", b"two"))
    second = Blobs(b"two", b"three")
    add(library, second, "other")
    assert second.read == [hex_of(b"three")]


def test_a_source_that_lies_leaves_no_entry_and_no_blob(library: Library) -> None:
    blobs = Blobs(b"one", BIG, lies={hex_of(b"two"): b"TWO"})
    with pytest.raises(DigestMismatch):
        add(library, blobs)
    assert library.entries() == []
    assert library.store.size_of(hex_of(b"two")) is None


def test_a_source_that_lacks_a_blob_or_has_another_size_is_refused(library: Library) -> None:
    with pytest.raises(BundleCorrupt, match="missing"):
        add(library, Blobs(b"one"), blobs=[(hex_of(b"gone"), 4)])
    with pytest.raises(BundleCorrupt, match="3 bytes, not 5"):
        add(library, Blobs(b"one"), blobs=[(hex_of(b"one"), 5)])
    with pytest.raises(BundleCorrupt, match="missing"):
        add(library, Blobs(b"one"), reader=None)
    with pytest.raises(BundleCorrupt, match="two sizes"):
        add(library, Blobs(b"one"), blobs=[(hex_of(b"one"), 5), (hex_of(b"one"), 3)])
    assert library.entries() == []


def test_without_a_source_the_blobs_must_be_here_and_sound(library: Library) -> None:
    blobs = Blobs(b"one")
    with library.store.receive(hex_of(b"one"), 3) as part:
        assert part is not None
        part.write(memoryview(b"one"))
    assert add(library, blobs, reader=None).name == "mini"
    path = library.store.path(hex_of(b"one"))
    path.chmod(0o644)
    path.write_bytes(b"ONE")
    with pytest.raises(BundleCorrupt):
        add(library, blobs, reader=None)


def test_what_a_power_cut_spoilt_is_copied_again_without_a_word(library: Library) -> None:
    library.store.make_folders()
    (library.store.partial / hex_of(BIG)).write_bytes(b"\0" * 5000)
    heard: list[int] = []
    add(library, Blobs(BIG), progress=lambda done, total: heard.append(done))
    assert library.store.is_intact(hex_of(BIG))
    assert heard[-1] == len(BIG)


def test_adding_again_keeps_what_the_entry_had(library: Library) -> None:
    first = add(library, Blobs(b"one", b"signature"), index=b"[1]")
    second = add(library, Blobs(b"one", b"image"), index=b"[2]", source="elsewhere")
    assert {name for name, _ in second.blobs} == {hex_of(b"one"), hex_of(b"signature"), hex_of(b"image")}
    assert second.index == b"[2]"
    assert second.added_at == first.added_at
    third = add(library, Blobs(b"one"), index=b"[3]", merge_index=lambda old, new: old + new)
    assert third.index == b"[2][3]"
    assert library.entries() == [third]


def test_two_who_add_the_same_bundle_at_once_lose_nothing(library: Library, data: Path) -> None:
    def one(number: int) -> LibraryEntry:
        return add(Library(data), Blobs(b"one", b"%d" % number))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(12)))
    (entry,) = library.entries()
    assert {name for name, _ in entry.blobs} == {hex_of(b"one"), *(hex_of(b"%d" % i) for i in range(12))}


def test_an_interrupt_ends_the_add_and_what_was_received_stays(library: Library) -> None:
    class Interrupts(Blobs):
        def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
            if offset:
                raise KeyboardInterrupt
            super().read_into(hexadecimal, view, offset)

    with pytest.raises(KeyboardInterrupt):
        add(library, Interrupts(BIG))
    assert library.entries() == []
    again = Blobs(BIG)
    add(library, again)
    assert len(again.read) == -(-len(BIG) // BLOCK_BYTES) - 1, "the first block is not read again"


def test_the_first_error_stops_the_other_copies(library: Library) -> None:
    started = threading.Event()

    class Broken(Blobs):
        def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
            if hexadecimal != hex_of(BIG):
                assert started.wait(30)
                raise ConnectionResetError
            started.set()
            # A second block is asked for only where the other copy is slower to fail than that.
            time.sleep(5 if hexadecimal in self.read else 0.1)
            super().read_into(hexadecimal, view, offset)

    blobs = Broken(BIG, b"one")
    with pytest.raises(ConnectionResetError):
        add(library, blobs)
    assert len(blobs.read) < 3, "the big blob has three blocks"


def test_a_removed_bundle_is_gone_and_its_blobs_go_when_nobody_has_them(library: Library, data: Path) -> None:
    first = add(library, Blobs(b"one", b"two"))
    second = add(library, Blobs(b"two", b"three"), "other")
    library.remove(first)
    library.remove(first)
    assert library.entries() == [second]
    would = gc(data, dry_run=True)
    assert library.store.size_of(hex_of(b"one")) == 3
    assert (would.blobs, would.size_bytes) == (1, 3)
    assert gc(data) == would
    assert sorted(os.listdir(library.store.whole)) == sorted([hex_of(b"two"), hex_of(b"three")])
    assert gc(data).files == 0
    # What is known of the blobs that stay is kept: they are not read again.
    stamped = {line.split()[0] for line in (library.store.root / "stamps.txt").read_text().splitlines()}
    assert stamped == set(os.listdir(library.store.whole))


def test_gc_removes_only_what_it_knows(library: Library, data: Path) -> None:
    kept = add(library, Blobs(b"one"))
    library.store.make_folders()
    run, gone = "a" * 64, "b" * 64
    for digest in (kept.manifest_hex, run, gone):
        (data / "bundles" / digest / "deep").mkdir(parents=True)
        (data / "bundles" / digest / "deep" / "file").write_bytes(b"12345")
        (data / "bundles" / f"{digest}.stamp.json").write_text("{}")
    leftover = data / "bundles" / f".{gone}.0123abcd.partial"
    leftover.mkdir()
    (leftover / "file").write_bytes(b"1")
    old, young = library.store.partial / ("c" * 64), library.store.partial / ("d" * 64)
    for path in (old, young):
        path.write_bytes(b"123")
    os.utime(old, (time.time() - 90_000,) * 2)
    mine = [
        data / "bundles" / "notes.txt",
        library.store.whole / "README",
        data / "bundles" / ".mine.partial",
    ]
    for path in mine:
        path.write_text("mine")
    collected = gc(data, keep=iter([f"sha256:{run}"]))
    assert (collected.blobs, collected.partials, collected.trees) == (0, 1, 1)
    assert (collected.files, collected.size_bytes) == (1 + 1 + 1 + 1, 3 + 2 + 5 + 1)
    assert not old.exists()
    assert young.exists()
    left = {path.name for path in (data / "bundles").iterdir()} - {".lock"}
    assert left == {
        kept.manifest_hex,
        f"{kept.manifest_hex}.stamp.json",
        run,
        f"{run}.stamp.json",
        "notes.txt",
        ".mine.partial",
    }
    assert all(path.read_text() == "mine" for path in mine)
    assert gc(data, keep=[run], partials=True).partials == 1
    assert not young.exists()


def test_gc_leaves_a_transfer_alone_that_is_under_way(library: Library, data: Path) -> None:
    with library.store.receive(hex_of(BIG), len(BIG)) as part:
        assert part is not None
        part.write(memoryview(BIG)[:1000])
        assert gc(data, partials=True).files == 0
        part.write(memoryview(BIG)[1000:])
    assert library.store.size_of(hex_of(BIG)) == len(BIG)


def test_gc_waits_for_an_add_and_takes_none_of_its_blobs(library: Library, data: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()

    class Slow(Blobs):
        def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
            if hexadecimal == hex_of(b"last"):
                reached.set()
                assert go_on.wait(30)
            super().read_into(hexadecimal, view, offset)

    with ThreadPoolExecutor(2) as pool:
        adding = pool.submit(add, library, Slow(b"first", b"second", b"last"))
        assert reached.wait(30)
        collecting = pool.submit(gc, data, partials=True)
        time.sleep(0.2)
        assert not collecting.done()
        go_on.set()
        assert collecting.result(30).files == 0
        entry = adding.result(30)
    assert all(library.store.is_intact(name) for name, _ in entry.blobs)


def test_adds_do_not_wait_for_each_other(library: Library, data: Path) -> None:
    reached, go_on = threading.Event(), threading.Event()

    class Slow(Blobs):
        def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
            reached.set()
            assert go_on.wait(30)
            super().read_into(hexadecimal, view, offset)

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(add, library, Slow(b"slow"), "slow")
        assert reached.wait(30)
        quick = add(Library(data), Blobs(b"quick"), "quick")
        assert library.entries() == [quick]
        library.remove(quick)
        go_on.set()
        entry = slow.result(30)
    assert library.entries() == [entry]


def test_gc_takes_nothing_while_it_is_not_known_what_an_entry_needs(library: Library, data: Path) -> None:
    entry = add(library, Blobs(b"one"))
    path = library.folder / f"{entry.manifest_hex}.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StorageFailed) as caught:
        gc(data)
    assert caught.value.where == str(path)
    assert library.store.size_of(hex_of(b"one")) == 3


def test_du_counts_what_bundles_share_once(library: Library, data: Path, tmp_path: Path) -> None:
    assert du(data).blobs.files == 0
    add(library, Blobs(b"one", b"12345"))
    add(library, Blobs(b"12345", b"seven77"), "other")
    with library.store.receive(hex_of(b"unused"), 6) as part:
        assert part is not None
        part.write(memoryview(b"unused"))
    (library.store.partial / ("c" * 64)).write_bytes(b"12")
    (data / "runs" / "1").mkdir(parents=True)
    (data / "runs" / "1" / "record.json").write_bytes(b"1234")
    (data / "images.lock").write_bytes(b"123")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "wheel").write_bytes(b"12345678")
    usage = du(data, tmp_path / "cache")
    assert (usage.blobs.files, usage.blobs.size_bytes) == (4, 3 + 5 + 7 + 6)
    assert (usage.shared_blobs.files, usage.shared_blobs.size_bytes) == (1, 5)
    assert (usage.unused_blobs.files, usage.unused_blobs.size_bytes) == (1, 6)
    assert (usage.partials.size_bytes, usage.runs.size_bytes, usage.cache.size_bytes) == (2, 4, 8)
    assert [(b.entry.name, b.own_bytes, b.shared_bytes) for b in usage.bundles] == [
        ("mini", 3, 5),
        ("other", 7, 5),
    ]
    kinds = (usage.blobs, usage.partials, usage.trees, usage.runs, usage.quarantine, usage.other)
    whole = sum(path.lstat().st_size for path in data.rglob("*") if path.is_file())
    assert sum(kind.size_bytes for kind in kinds) == whole


def test_repair_moves_damage_aside_and_says_what_is_to_be_added_again(library: Library, data: Path) -> None:
    sound = add(library, Blobs(b"one"))
    hurt = add(library, Blobs(b"one", b"two", b"three"), "hurt")
    lost = add(library, Blobs(b"one"), "lost")
    two = library.store.path(hex_of(b"two"))
    status = two.stat()
    two.chmod(0o644)
    two.write_bytes(b"TWO")
    os.utime(two, ns=(status.st_atime_ns, status.st_mtime_ns))
    library.store.path(hex_of(b"three")).unlink()
    (library.store.whole / "stray").write_bytes(b"s")
    (library.folder / f"{lost.manifest_hex}.json").write_bytes(b"{")
    (library.folder / f".{lost.manifest_hex}.json.abc").write_bytes(b"half")
    (library.folder / ".mine").write_bytes(b"mine")
    heard: list[tuple[int, int]] = []
    repair = library.repair(lambda done, total: heard.append((done, total)))
    assert repair.verified == 1
    assert repair.incomplete == ((hurt, (hex_of(b"two"), hex_of(b"three"))),)
    assert [path.name for path in repair.removed] == [f".{lost.manifest_hex}.json.abc"]
    aside = {path.name.partition("Z-")[2]: path.read_bytes() for path in (data / "quarantine").iterdir()}
    assert aside == {hex_of(b"two"): b"TWO", "stray": b"s", f"{lost.manifest_hex}.json": b"{"}
    assert set(repair.set_aside) == set((data / "quarantine").iterdir())
    assert heard[-1] == (6, 6)
    assert (library.folder / ".mine").read_bytes() == b"mine"
    assert library.entries() == [hurt, sound]
    assert library.problems() == []
    assert add(library, Blobs(b"one", b"two", b"three"), "hurt").blobs == hurt.blobs
    again = library.repair()
    assert (again.verified, again.set_aside, again.incomplete, again.removed) == (3, (), (), ())


def test_an_entry_of_a_newer_version_is_told_and_never_touched(library: Library, data: Path) -> None:
    entry = add(library, Blobs(b"one"))
    path = library.folder / f"{entry.manifest_hex}.json"
    newer = path.read_bytes().replace(b"library-entry/v1", b"library-entry/v2")
    path.write_bytes(newer)
    (problem,) = library.problems()
    assert "version 2" in problem.message
    assert library.entries() == []
    assert library.repair().set_aside == ()
    for change in (lambda: gc(data), lambda: add(library, Blobs(b"one"))):
        with pytest.raises(StorageFailed):
            change()
    assert path.read_bytes() == newer


def test_damaged_entries_are_told_and_stop_nothing(library: Library) -> None:
    sound = add(library, Blobs(b"one"))
    content = (library.folder / f"{sound.manifest_hex}.json").read_bytes()
    damaged = {
        "a": b"",
        "b": content,
        "c": b"[" * 100_000,
        "d": content.replace(b'"size":3', b'"size":4'),
        "e": b"null",
    }
    for letter, text in damaged.items():
        (library.folder / f"{letter * 64}.json").write_bytes(text)
    (library.folder / f"{'f' * 64}.json").mkdir()
    (library.folder / f"{'0' * 64}.json").symlink_to("/dev/zero")
    (library.folder / "notes.json").write_text("mine")
    assert library.entries() == [sound]
    assert [problem.path.name[0] for problem in library.problems()] == ["0", *"abcdef"]
    assert library.find("mini") == sound
    assert len(library.repair().set_aside) == 7
    assert library.problems() == []


def test_ten_thousand_entries_are_listed_at_once(library: Library) -> None:
    library.folder.mkdir(parents=True)
    for i in range(10_000):
        entry = made(f"model {i % 100}", f"1.{i // 100}.0")
        (library.folder / f"{entry.manifest_hex}.json").write_bytes(entry.render())
    begun = time.process_time()
    entries = library.entries()
    took_s = time.process_time() - begun
    assert len(entries) == 10_000
    assert [entry.version for entry in entries[:11]] == [f"1.{i}.0" for i in range(11)]
    assert took_s < 5, "processor time, with room for slow machines"
    assert library.find("model 7").version == "1.99.0"


# References

TEXT = st.text(min_size=1, max_size=12)
NAMES = st.one_of(
    TEXT, st.sampled_from(["mini", "ResNet 50", "é", "e\u0301", "a:b", "a@b", "sha256:" + "a" * 20])
)
VERSIONS = st.one_of(TEXT, st.sampled_from(["1.0.0", "1.0.0+cu12", "2.0.0-rc.1", "1.10.0", "10"]))
ENTRIES = st.builds(made, NAMES, VERSIONS, st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}"))
LIBRARIES = st.lists(ENTRIES, min_size=1, max_size=8, unique_by=lambda entry: entry.manifest_digest[:19])


@settings(max_examples=150, deadline=None)
@given(LIBRARIES)
def test_every_bundle_is_found_by_its_reference_and_its_digest(entries: list[LibraryEntry]) -> None:
    for entry in entries:
        assert find_entry(entries, entry.reference) == entry
        assert find_entry(entries, f"{entry.name}@{entry.manifest_digest}") == entry
        assert find_entry(entries, entry.manifest_digest) == entry
        assert find_entry(entries, "@" + entry.manifest_hex[:12]) == entry


@settings(max_examples=150, deadline=None)
@given(LIBRARIES, TEXT)
def test_a_name_finds_bundles_of_that_name_or_says_why_not(entries: list[LibraryEntry], other: str) -> None:
    refused: list[UsageError] = []
    for text in [other, *(entry.name for entry in entries), *(entry.label for entry in entries)]:
        if text.startswith(("@", "sha256:")) or "@sha256:" in text:
            continue
        try:
            found = find_entry(entries, text)
        except UsageError as error:
            refused.append(error)
        else:
            assert unicodedata.normalize("NFC", text) in {
                unicodedata.normalize("NFC", name) for name in (found.name, found.label)
            }
    assert all(error.hint for error in refused)


@settings(max_examples=150, deadline=None)
@given(ENTRIES)
def test_an_entry_is_read_as_it_was_written(entry: LibraryEntry) -> None:
    assert parse_entry(entry.render(), where="x") == entry


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_entries_are_refused_and_nothing_else_happens(data: st.DataObject) -> None:
    document = made("mini", "1.0.0").to_document()
    whole = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    kind = data.draw(st.sampled_from(["bytes", "member", "missing", "extra", "cut", "flip"]))
    if kind == "bytes":
        content = data.draw(st.binary(max_size=60))
    elif kind == "cut":
        content = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif kind == "flip":
        position = data.draw(st.integers(0, len(whole) - 1))
        content = whole[:position] + bytes([data.draw(st.integers(0, 255))]) + whole[position + 1 :]
    else:
        key = data.draw(st.sampled_from(sorted(document)))
        changed = dict(document)
        if kind == "missing":
            del changed[key]
        else:
            changed[key if kind == "member" else "further"] = data.draw(JSON)
        content = json.dumps(changed, separators=(",", ":")).encode() + b"\n"
    try:
        entry = parse_entry(content, where="x")
    except (BundleCorrupt, StorageFailed):
        return
    assert entry.render() == content


def test_a_duplicate_key_is_damage() -> None:
    content = made("mini", "1.0.0").render()
    with pytest.raises(BundleCorrupt):
        parse_entry(content.replace(b'"version"', b'"name":"other","version"'), where="x")


SOME = [
    made("mini", "1.0.0", "1" * 64),
    made("mini", "1.9.0", "2" * 64),
    made("mini", "1.10.0", "3" * 64),
    made("mini", "1.10.0", "3" * 6 + "4" * 58),
    made("Größe 50", "1.0.0+cu12", "5" * 64),
    made("odd", "not a version", "6" * 64),
    made("odd", "0.1", "7" * 64),
    made("evil@sha256:1111111", "1", "8" * 64),
    made("sha256:1111111", "1", "9" * 64),
    made("mini:1.9.0", "9", "a" * 64),
    made("alone:1", "9", "b" * 64),
]


@pytest.mark.parametrize(
    ("text", "digit"),
    [
        ("mini:1.0.0", "1"),
        ("mini:1.9.0", "2"),
        ("mini:1.10.0@sha256:" + "3" * 7, "3"),
        ("mini@sha256:2222222", "2"),
        ("sha256:2222222", "2"),
        ("@2222222", "2"),
        ("Größe 50", "5"),
        ("Gro\u0308ße 50", "5"),
        ("Größe 50:1.0.0+cu12", "5"),
        ("odd", "7"),
        ("odd:not a version", "6"),
        # Names that look like a digest never stand for it.
        ("sha256:1111111", "1"),
        ("@8888888", "8"),
        # Nor do names that look like a version.
        ("mini:1.9.0:9", "a"),
        ("alone:1:9", "b"),
    ],
)
def test_references_mean_one_bundle(text: str, digit: str) -> None:
    assert find_entry(SOME, text).manifest_digest[len("sha256:")] == digit


def test_several_matches_are_listed_with_their_digests() -> None:
    for text in ("mini", "mini:1.10.0"):
        with pytest.raises(UsageError, match="2 bundles") as caught:
            find_entry(SOME, text)
        assert caught.value.context == ("mini:1.10.0@sha256:333333333333", "mini:1.10.0@sha256:333333444444")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("mimi", "'mini'"),
        ("MINI:1.0.0", "'mini:1.0.0'"),
        ("alone:1", "'alone:1:9'"),
        ("mini@sha256:5555555", "list"),
        ("", "list"),
    ],
)
def test_what_is_unknown_comes_with_what_was_meant(text: str, meant: str) -> None:
    with pytest.raises(ReferenceNotFound) as caught:
        find_entry(SOME, text)
    assert meant in str(caught.value.hint)


def test_too_few_digits_are_refused() -> None:
    with pytest.raises(UsageError, match="7 to 64 digits"):
        find_entry(SOME, "@111111")
    assert find_entry([replace(SOME[0], manifest_digest="sha256:" + "a" * 64)], "@AAAAAAA")


def test_the_library_is_read_without_being_written_to(data: Path) -> None:
    library = Library(data)
    assert library.entries() == []
    assert library.problems() == []
    with pytest.raises(ReferenceNotFound):
        library.find("mini")
    assert du(data).bundles == ()
    assert not data.exists()


def test_the_store_imports_nothing_heavy() -> None:
    code = "import sys, mlbundle.store.collect\nprint([n for n in ('packaging', 'numpy', 'urllib3') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
