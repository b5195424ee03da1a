"""Write the forms for PyTorch, with the weights of model.onnx.

    python export_torch.py [FOLDER]     writes FOLDER/torch/model.safetensors, model.pt and model.pt2

Reads model.onnx and torch/model.py beside this file. Needs torch, onnx and safetensors.
"""

from __future__ import annotations

import io
import runpy
import sys
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
WRITTEN_BY_TORCH = {"version", "byteorder", ".data/serialization_id"}


def weights() -> dict[str, torch.Tensor]:
    """Return the weights of model.onnx by their names in PyTorch, which are those of the ONNX file too."""
    graph = onnx.load(HERE / "model.onnx").graph
    return {entry.name: torch.tensor(numpy_helper.to_array(entry)) for entry in graph.initializer}


def save_trace(model: torch.nn.Module, example: torch.Tensor, path: Path) -> None:
    """Write TorchScript without the records that only say in which files of this machine the code was found."""
    buffer = io.BytesIO()
    with torch.inference_mode():
        torch.jit.save(torch.jit.trace(model, example), buffer)
    buffer.seek(0)
    reader = torch._C.PyTorchFileReader(buffer)
    writer = torch._C.PyTorchFileWriter(str(path))
    for name in reader.get_all_records():
        if not name.endswith(".debug_pkl") and name not in WRITTEN_BY_TORCH:
            record = reader.get_record(name)
            writer.write_record(name, record, len(record))
    writer.write_end_of_file()


def save_exported(model: torch.nn.Module, example: torch.Tensor, path: Path) -> None:
    """Write a `torch.export` program with a free batch axis, without the places in the source."""
    program = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("N")},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    torch.export.save(program, path)


def main() -> None:
    """Write all three forms."""
    folder = (Path(sys.argv[1]) if len(sys.argv) > 1 else HERE) / "torch"
    folder.mkdir(parents=True, exist_ok=True)
    state = weights()
    save_file(state, folder / "model.safetensors")
    model = runpy.run_path(str(HERE / "torch" / "model.py"))["model"]()
    model.load_state_dict(state)
    model.eval()
    example = torch.zeros(2, 1, 8, 8)
    save_trace(model, example, folder / "model.pt")
    save_exported(model, example, folder / "model.pt2")


if __name__ == "__main__":
    main()
