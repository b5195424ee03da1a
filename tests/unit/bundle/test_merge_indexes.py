"""The `index.json` of a library entry when the same bundle comes again with other attachments."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mlbundle.bundle.oci import (
    INDEX_TYPE,
    MANIFEST_TYPE,
    MAX_ENTRIES,
    SIGNATURE_TYPES,
    Descriptor,
    ImageEntry,
    Index,
    ReferrerEntry,
    encode_index,
    merge_indexes,
    parse_index,
)
from mlbundle.bundle.strictjson import loads

MODEL = Descriptor(MANIFEST_TYPE, "f" * 64, 7)
NOTE = "application/vnd.example.note"


def referrers(start: int, count: int, artifact_type: str = NOTE) -> tuple[ReferrerEntry, ...]:
    numbers = range(start, start + count)
    return tuple(
        ReferrerEntry(artifact_type, Descriptor(MANIFEST_TYPE, f"{number:064x}", 9)) for number in numbers
    )


def index(*entries: ReferrerEntry, images: tuple[str, ...] = ()) -> bytes:
    found = tuple(ImageEntry(name, Descriptor(INDEX_TYPE, f"{7:064x}", 5)) for name in images)
    return encode_index(Index(MODEL, "1.0.0", found, entries))


def merged(old: bytes, new: bytes) -> Index:
    """The merged index, read as a library entry reads it."""
    return parse_index(loads(merge_indexes(old, new), where="merged#"), "merged#")


def test_both_are_kept_while_there_is_room() -> None:
    found = merged(index(*referrers(0, 3), images=("cpu",)), index(*referrers(2, 3), images=("cuda",)))
    assert found.referrers == referrers(0, 5)
    assert [entry.accelerator for entry in found.images] == ["cpu", "cuda"]


def test_what_was_there_stays_when_there_is_no_room() -> None:
    old = referrers(5000, 600)
    found = merged(index(*old), index(*referrers(0, 600)))
    assert 1 + len(found.referrers) == MAX_ENTRIES
    assert set(old) <= set(found.referrers)


def test_a_signature_goes_before_what_is_none() -> None:
    signatures = referrers(9000, 2, SIGNATURE_TYPES[0])
    for old, new in (
        (referrers(0, 900), (*referrers(2000, 90), *signatures)),
        (signatures, referrers(0, 999)),
    ):
        found = merged(index(*old), index(*new))
        assert set(signatures) <= set(found.referrers)
    full = merged(index(*referrers(0, 999)), index(*signatures))
    assert set(signatures) <= set(full.referrers)


def test_images_always_stay() -> None:
    found = merged(index(*referrers(0, 999)), index(images=("cpu",)))
    assert [entry.accelerator for entry in found.images] == ["cpu"]
    assert len(found.referrers) == MAX_ENTRIES - 2


def test_an_old_index_that_can_not_be_read_is_replaced() -> None:
    new = index(*referrers(0, 1))
    for old in (b"", b"{}", b"[]", index(*referrers(0, 1200))):
        assert merge_indexes(old, new) == new


@settings(max_examples=12)
@given(st.integers(0, 999), st.integers(0, 999), st.integers(0, 2000))
def test_the_result_can_always_be_read(old: int, new: int, start: int) -> None:
    found = merged(index(*referrers(1000, old)), index(*referrers(start, new)))
    assert max(old, new) <= len(found.referrers) < MAX_ENTRIES
