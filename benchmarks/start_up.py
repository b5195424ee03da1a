"""What it costs to start: `mlbundle --help`, and a Docker run up to its first inference.

    python benchmarks/start_up.py [--rounds 5] [--no-docker]

Help: CPU seconds of `mlbundle --help` over those of the same interpreter doing nothing, and which heavy modules it
imported. Docker: wall time from the start of `mlbundle run` to the begin of the warm-up (the first inference), over
`docker run` of the same image doing `import onnxruntime`; both alternate, medians are compared. The claims: none of the
heavy modules; at most 2 s more than the plain container.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mlbundle.config import load_settings
from mlbundle.platforms import machine_facts
from mlbundle.runtime.lock import read_images_lock

HEAVY = ("rich", "textual", "docker", "jsonschema", "numpy", "requests", "yaml")
CLAIM_S = 2.0


def cpu_s(command: list[str]) -> float:
    """CPU seconds (user and system) of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def help_figures(rounds: int) -> dict[str, object]:
    script = "import sys; from mlbundle.cli.main import _run; _run(['--help']); "
    script += f"print(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    heavy = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stderr.split()
    help_s = statistics.median(
        cpu_s([sys.executable, "-m", "mlbundle.cli.main", "--help"]) for _ in range(rounds)
    )
    bare_s = statistics.median(cpu_s([sys.executable, "-c", "pass"]) for _ in range(rounds))
    return {"help_cpu_s": round(help_s, 3), "interpreter_cpu_s": round(bare_s, 3), "heavy_modules": heavy}


def first_inference_s() -> float:
    """Seconds from the start of `mlbundle run` to the begin of its warm-up, by its own events."""
    options = [
        "--runtime",
        "docker",
        "--queries",
        "64",
        "--warmup",
        "1ms",
        "--no-accuracy",
        "--format",
        "jsonl",
    ]
    begun_ns = time.monotonic_ns()
    done = subprocess.run(
        [sys.executable, "-m", "mlbundle.cli.main", "-q", "run", "digits-cnn", *options],
        check=True,
        capture_output=True,
        text=True,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (warm_up,) = [
        e for e in events if e["kind"] == "phase" and e["name"] == "warm-up" and e["state"] == "begun"
    ]
    return (warm_up["t_ns"] - begun_ns) / 1e9


def plain_container_s(image: str) -> float:
    command = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--entrypoint",
        "python3",
        image,
        "-c",
        "import onnxruntime",
    ]
    begun = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - begun


def docker_figures(rounds: int) -> dict[str, object]:
    images = read_images_lock(load_settings().images_lock)
    (image,) = [
        entry.config_digest
        for key, entry in images.items()
        if (key.framework, key.accelerator) == ("onnxruntime", "cpu")
    ]
    pairs = [(first_inference_s(), plain_container_s(image)) for _ in range(rounds)]
    ours_s, plain_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    over_s = statistics.median(ours - plain for ours, plain in pairs)
    return {
        "first_inference_s": round(ours_s, 3),
        "plain_container_s": round(plain_s, 3),
        "over_s": round(over_s, 3),
        "claim_s": CLAIM_S,
        "holds": over_s <= CLAIM_S,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-docker", action="store_true")
    arguments = parser.parse_args()
    result: dict[str, object] = {"benchmark": "start_up", "machine": machine_facts().to_document()}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(Path(folder))
        result["help"] = help_figures(arguments.rounds)
        if not arguments.no_docker:
            result["docker"] = docker_figures(arguments.rounds)
    print(json.dumps(result, indent=2))
    holds = not result["help"]["heavy_modules"] and result.get("docker", {"holds": True})["holds"]
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
