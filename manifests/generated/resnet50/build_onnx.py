"""Write the network as one ONNX file; needs NumPy alone.

python build_onnx.py FOLDER [JSON]      writes FOLDER/onnx/model.onnx
"""

from __future__ import annotations

from network import EPSILON, Configuration, forward
from onnx_file import model, node, tensor, value_info
from weights import arrays


class OnnxLayers:
    """Writes down the layers instead of doing them: values are names; see `network.Layers`."""

    def __init__(self, sides: dict[str, int]) -> None:
        self.nodes: list[bytes] = []
        self._sides = sides

    def convolve(self, name: str, value: str, *, stride: int, padding: int) -> str:
        """Add a Conv without offset."""
        side = self._sides[f"{name}.weight"]
        settings = {"kernel_shape": (side,) * 2, "pads": (padding,) * 4, "strides": (stride,) * 2}
        return self._add("Conv", name, [value, f"{name}.weight"], settings)

    def normalise(self, name: str, value: str) -> str:
        """Add a BatchNormalization."""
        parts = [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        return self._add("BatchNormalization", name, [value, *parts], {"epsilon": EPSILON})

    def relu(self, name: str, value: str) -> str:
        """Add a Relu."""
        return self._add("Relu", name, [value])

    def max_pool(self, name: str, value: str) -> str:
        """Add a MaxPool."""
        settings = {"kernel_shape": (3, 3), "pads": (1,) * 4, "strides": (2, 2)}
        return self._add("MaxPool", name, [value], settings)

    def add(self, name: str, value: str, other: str) -> str:
        """Add an Add."""
        return self._add("Add", name, [value, other])

    def average(self, name: str, value: str) -> str:
        """Add a GlobalAveragePool and take away the axes it leaves."""
        pooled = self._add("GlobalAveragePool", name, [value])
        return self._add("Flatten", "flatten", [pooled])

    def dense(self, name: str, value: str) -> str:
        """Add a Gemm: its output is the network's."""
        self.nodes.append(
            node("Gemm", name, [value, f"{name}.weight", f"{name}.bias"], "logits", {"transB": 1})
        )
        return "logits"

    def _add(
        self,
        operator: str,
        name: str,
        inputs: list[str],
        settings: dict[str, int | float | tuple[int, ...]] | None = None,
    ) -> str:
        output = f"{name}.out"
        self.nodes.append(node(operator, name, inputs, output, settings))
        return output


def main() -> None:
    """Write the file."""
    folder, configuration = Configuration.of_command_line()
    weights = dict(arrays(configuration))
    layers = OnnxLayers({name: value.shape[-1] for name, value in weights.items() if value.ndim == 4})
    forward(layers, "input")
    size = configuration.size
    content = model(
        "resnet50",
        layers.nodes,
        (tensor(name, value) for name, value in weights.items()),
        [value_info("input", ["N", 3, size, size])],
        [value_info("logits", ["N", configuration.classes])],
    )
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    (folder / "onnx" / "model.onnx").write_bytes(content)


if __name__ == "__main__":
    main()
