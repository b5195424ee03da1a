"""The digits CNN as PyTorch code: `model()` builds it, `model.safetensors` holds its weights."""

from torch import nn


def model() -> nn.Module:
    """Return the network without its weights: float32 [N,1,8,8] -> logits [N,10], 38,282 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
