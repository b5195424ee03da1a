"""Write the network as traced TorchScript.

python build_torch.py FOLDER [JSON]      writes FOLDER/torch/model.pt; needs torch
"""

from __future__ import annotations

import torch
from network import BLOCKS, EPSILON, EXPANSION, Configuration
from torch import nn
from weights import arrays


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride), 1x1, and a short cut."""

    def __init__(self, channels: int, inner: int, stride: int, *, shrinks: bool) -> None:
        super().__init__()
        outer = inner * EXPANSION
        self.conv1, self.bn1 = _convolution(channels, inner, 1, 1)
        self.conv2, self.bn2 = _convolution(inner, inner, 3, stride)
        self.conv3, self.bn3 = _convolution(inner, outer, 1, 1)
        self.relu1, self.relu2, self.relu3 = nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.downsample = nn.Sequential(*_convolution(channels, outer, 1, stride)) if shrinks else None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        branch = self.relu1(self.bn1(self.conv1(value)))
        branch = self.relu2(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        if self.downsample is not None:
            value = self.downsample(value)
        return self.relu3(branch + value)


class ResNet50(nn.Module):
    """The whole network, with the names of torchvision's."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        width = configuration.width
        self.conv1, self.bn1 = _convolution(3, width, 7, 2)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = width
        for stage, count in enumerate(BLOCKS, start=1):
            inner = width << (stage - 1)
            blocks = []
            for number in range(count):
                stride = 2 if stage > 1 and number == 0 else 1
                blocks.append(Bottleneck(channels, inner, stride, shrinks=number == 0))
                channels = inner * EXPANSION
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, configuration.classes)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - the name of the input
        """Return the logits."""
        value = self.maxpool(self.relu(self.bn1(self.conv1(input))))
        value = self.layer4(self.layer3(self.layer2(self.layer1(value))))
        return self.fc(torch.flatten(self.avgpool(value), 1))


def _convolution(channels: int, out: int, side: int, stride: int) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    kernel = nn.Conv2d(channels, out, side, stride, side // 2, bias=False)
    return kernel, nn.BatchNorm2d(out, eps=EPSILON)


def main() -> None:
    """Write the file."""
    folder, configuration = Configuration.of_command_line()
    network = ResNet50(configuration)
    state = {name: torch.from_numpy(value) for name, value in arrays(configuration)}
    missing, unknown = network.load_state_dict(state, strict=False)
    wrong = [*unknown, *(name for name in missing if not name.endswith("num_batches_tracked"))]
    if wrong:
        raise SystemExit(f"names that only one side has: {', '.join(wrong)}")
    network.eval()
    example = torch.zeros(1, 3, configuration.size, configuration.size)
    (folder / "torch").mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        torch.jit.save(torch.jit.trace(network, example), str(folder / "torch" / "model.pt"))


if __name__ == "__main__":
    main()
