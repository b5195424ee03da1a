"""Writes ONNX files without the onnx package: the few messages that a network of known layers needs.

Field numbers are those of onnx.proto (ONNX IR version 8); the encoding is that of Protocol Buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

IR_VERSION = 8
OPSET = 17
_FLOAT = 1
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_INTS = 1, 2, 7


def number(field: int, value: int) -> bytes:
    """Return a field with a whole number that is not negative."""
    return _varint(field << 3) + _varint(value)


def chunk(field: int, content: bytes | str) -> bytes:
    """Return a field with bytes, a text or a message."""
    data = content.encode() if isinstance(content, str) else content
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def node(
    operator: str,
    name: str,
    inputs: Sequence[str],
    output: str,
    attributes: Mapping[str, int | float | tuple[int, ...]] | None = None,
) -> bytes:
    """Return a NodeProto."""
    parts = [chunk(1, each) for each in inputs] + [chunk(2, output), chunk(3, name), chunk(4, operator)]
    parts += [chunk(5, _attribute(key, value)) for key, value in (attributes or {}).items()]
    return b"".join(parts)


def _attribute(name: str, value: float | tuple[int, ...]) -> bytes:
    if isinstance(value, tuple):
        return chunk(1, name) + b"".join(number(8, each) for each in value) + number(20, _ATTRIBUTE_INTS)
    if isinstance(value, int):
        return chunk(1, name) + number(3, value) + number(20, _ATTRIBUTE_INT)
    import struct

    return chunk(1, name) + _varint(2 << 3 | 5) + struct.pack("<f", value) + number(20, _ATTRIBUTE_FLOAT)


def tensor(name: str, values: Any) -> bytes:
    """Return a TensorProto of a float32 array."""
    dimensions = b"".join(number(1, size) for size in values.shape)
    return dimensions + number(2, _FLOAT) + chunk(8, name) + chunk(9, values.astype("<f4").tobytes())


def value_info(name: str, shape: Iterable[int | str]) -> bytes:
    """Return a ValueInfoProto of float32 values; a text is a free axis."""
    axes = (number(1, axis) if isinstance(axis, int) else chunk(2, axis) for axis in shape)
    described = number(1, _FLOAT) + chunk(2, b"".join(chunk(1, axis) for axis in axes))
    return chunk(1, name) + chunk(2, chunk(1, described))


def model(
    name: str,
    nodes: Iterable[bytes],
    tensors: Iterable[bytes],
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
) -> bytes:
    """Return a ModelProto."""
    graph = [chunk(1, each) for each in nodes]
    graph.append(chunk(2, name))
    graph += [chunk(5, each) for each in tensors]
    graph += [chunk(11, each) for each in inputs]
    graph += [chunk(12, each) for each in outputs]
    opset = chunk(1, "") + number(2, OPSET)
    return number(1, IR_VERSION) + chunk(2, "mlbundle") + chunk(7, b"".join(graph)) + chunk(8, opset)
