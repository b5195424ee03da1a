"""The first bytes by which most files are passed over are exactly those that no pickle begins with."""

from __future__ import annotations

import pickletools

import pytest

from mlbundle.bundle.opcodes import Opcodes
from mlbundle.bundle.pickles import OPENERS


def test_the_openers_are_the_opcodes_that_take_nothing_from_the_stack() -> None:
    assert {ord(opcode.code) for opcode in pickletools.opcodes if not opcode.stack_before} == OPENERS


@pytest.mark.parametrize("rest", [b"IHDR" * 8, b"\x80\x04N.", b"(lp0\n.", b"cos\nsystem\n(tR."])
def test_nothing_makes_a_pickle_of_the_signature_of_png(rest: bytes) -> None:
    data = b"\x89PNG\r\n\x1a\n" + rest
    assert not Opcodes(lambda offset, count: data[offset : offset + count], data).are_a_pickle()
