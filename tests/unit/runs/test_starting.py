"""What is done for a run that is being started, told from what the installation of an environment says."""

from __future__ import annotations

from mlbundle.runs.starting import Starting
from mlbundle.runtime.installing import _Progress


def test_the_lines_of_an_environment_are_understood() -> None:
    starting, seen = Starting(), []

    def take(line: str) -> None:
        starting.take(line)
        seen.append((starting.stage, starting.share, starting.now))

    progress = _Progress(2, take)
    take("packing digits-cnn")
    take("making the torch environment: 2 packages, once for each lock")
    progress.hear("Downloading numpy-2.1.0-cp311-cp311-manylinux.whl (16.3 MB)")
    progress.hear("Downloading torch-2.13.0-cp311-cp311-manylinux.whl (180.0 MB)")
    progress.hear("Installing collected packages: numpy, torch")
    take("  the torch environment is there after 37 s")
    assert seen == [
        ("plan", None, ""),
        ("environment", None, "of torch"),
        ("environment", 0.0, "numpy"),
        ("environment", 0.5, "torch"),
        ("environment", 1.0, "all are here and are put in their places"),
        ("plan", None, ""),
    ]
    assert list(starting.lines)[-1] == "  the torch environment is there after 37 s"
