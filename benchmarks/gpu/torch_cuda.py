"""PyTorch on a GPU through the worker: the same outputs as on the CPU, and the GPU's facts in the record.

    python benchmarks/gpu/torch_cuda.py --python PYTHON [--rtol 1e-3] [--atol 1e-3]

PYTHON is one with torch (CUDA build) and NumPy; no container engine is needed. The digits CNN and ResNet-50 (its
weights drawn from a seed) run twice each, on the CPU and on the GPU; then the runs are compared. Ends with 0 when all
outputs agree and the record names the GPU, 1 when not, 3 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def mlbundle(*arguments: str, home: Path) -> dict[str, Any]:
    """Run a command and return its JSON document; ends the program where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "mlbundle.cli.main", *arguments, "--json"],
        env={**os.environ, "MLBUNDLE_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"mlbundle {' '.join(arguments)} ended with {done.returncode}") from None
    if "accelerator-missing" in (document.get("reference"), document.get("where")):
        print(document["message"], file=sys.stderr)
        raise SystemExit(3)
    if "run_id" not in document and done.returncode:
        raise SystemExit(f"mlbundle {' '.join(arguments)}: {document.get('message')}")
    return document


def measure(model: str, arguments: argparse.Namespace, home: Path) -> bool:
    """Run one model on the CPU and on the GPU; print what was seen, return whether the outputs agree."""
    records = [
        mlbundle(
            "run", model, "--framework", "torch", "--python", arguments.python, "--trust",
            "--accelerator", accelerator, "--threads", "4", "--duration", "3s", home=home,
        )
        for accelerator in ("cpu", "gpu")
    ]  # fmt: skip
    runs = [record["run_id"] for record in records]
    tolerance = ("--rtol", str(arguments.rtol), "--atol", str(arguments.atol))
    compared = mlbundle("compare", *runs, *tolerance, home=home)["runs"][1]
    for record in records:
        p50_us = record["result"]["latency_ns"]["p50"] / 1e3
        device = record["environment"]["framework"]["device"]
        print(f"{record['bundle']['name']:<12} {device:<32} p50 {p50_us:,.0f} us")
    print(f"{'':<12} same: {compared['same']}, largest difference {compared['max_difference']}")
    gpus = records[1]["environment"].get("gpus")
    print(f"{'':<12} in the record: {json.dumps(gpus)}")
    return bool(compared["same"]) and bool(gpus)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rtol", type=float, default=1e-3)
    parser.add_argument("--atol", type=float, default=1e-3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        resnet = Path(folder) / "resnet50"
        good = measure("digits-cnn", arguments, home)
        mlbundle(
            "generate", "resnet50", "--framework", "torch", "--python", f"torch={arguments.python}",
            "--output", str(resnet), home=home,
        )  # fmt: skip
        good &= measure(str(resnet), arguments, home)
    print("outputs agree" if good else "OUTPUTS DIFFER, or the record does not name the GPU")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
