"""The first bytes by which most files are passed over are exactly those that no pickle begins with."""

from __future__ import annotations

import pickletools
import struct
import time

import pytest

from mlbundle.bundle.effort import Effort
from mlbundle.bundle.opcodes import Opcodes
from mlbundle.bundle.pickles import OPENERS, holds_pickle


def test_the_openers_are_the_opcodes_that_take_nothing_from_the_stack() -> None:
    assert {ord(opcode.code) for opcode in pickletools.opcodes if not opcode.stack_before} == OPENERS


@pytest.mark.parametrize("rest", [b"IHDR" * 8, b"\x80\x04N.", b"(lp0\n.", b"cos\nsystem\n(tR."])
def test_nothing_makes_a_pickle_of_the_signature_of_png(rest: bytes) -> None:
    data = b"\x89PNG\r\n\x1a\n" + rest
    assert not Opcodes(lambda offset, count: data[offset : offset + count], data, Effort()).are_a_pickle()


def holds(data: bytes) -> bool:
    return holds_pickle(lambda offset, count: data[offset : offset + count], len(data))


def test_a_mark_of_a_protocol_that_nobody_reads_is_chance() -> None:
    assert holds(b"\x80\x04N.")
    assert not holds(b"\x80\xc7N.")


def zip_of_one_member(entries: int, data: bytes) -> bytes:
    """A zip whose directory names its one member again and again."""
    local = (
        b"PK\x03\x04"
        + struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0, 0, len(data), len(data), 1, 0)
        + b"x"
        + data
    )
    entry = b"PK\x01\x02" + struct.pack(
        "<HHHHHHIIIHHHHHII", 20, 20, 0, 0, 0, 0, 0, len(data), len(data), 1, 0, 0, 0, 0, 0, 0
    )
    directory = (entry + b"x") * entries
    end = struct.pack("<HHHHIIH", 0, 0, entries, entries, len(directory), len(local), 0)
    return local + directory + b"PK\x05\x06" + end


def test_a_member_that_is_named_ten_thousand_times_is_looked_at_once() -> None:
    begun = time.process_time()
    assert not holds(zip_of_one_member(10_000, b"N0" * 4_000))
    assert holds(zip_of_one_member(10, b"\x80\x04N."))
    assert time.process_time() - begun < 2


def test_what_costs_too_much_to_look_at_counts_as_one() -> None:
    """Nobody can say that it is none, and a bundle of many such files ends in time."""
    slow, effort = b"N0" * 4_000, Effort(20_000)
    assert not holds_pickle(lambda offset, count: slow[offset : offset + count], len(slow), effort)
    for _ in range(3):
        found = holds_pickle(lambda offset, count: slow[offset : offset + count], len(slow), effort)
    assert found
    assert effort.spent
