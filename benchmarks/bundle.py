"""How fast bundles are, beside tar, zip, hashlib, skopeo and oras; what `inspect` costs; how much memory it takes.

    python benchmarks/bundle.py [--size 1G] [--rounds 3] [--folder /tmp] [--only pack,verify] [--no-memory]

The data are weights (float32, normally distributed) in one file and 2,000 small files of 30 to 60 kB, all in the page
cache. Every row is a whole command, from its start to its end, ours with the start of its interpreter. The commands of
a group take turns; figures are medians over the rounds, ratios too (of the two speeds of one round). Whatever writes
files ends with them on disk (fsync, or `sync` of what was written), ours and the others alike. Registries are
`docker-registry` on this machine, anew and empty for every push. `--folder` on a tmpfs takes the disk out of it.

`verify` computes two digests of each byte of a large file, the file's and that of its 64 MiB: so does "the same
digests", one thread for each. "Half each" is what two threads can hash at all; no tool can check the one digest of a
large file like that.

The peak of memory is that of the process as the kernel tells it, for three sizes. `inspect` is measured in CPU time
over that of an interpreter that does nothing, on a bundle of one file of 4 GiB and on one of 3,000 small files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.platforms import machine_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MLBUNDLE = [sys.executable, "-m", "mlbundle.cli.main", "-q"]
SMALL_FILES = 2_000
INSPECT_FILES = 3_000
INSPECT_BYTES = 4 << 30
INSPECT_CLAIM_MS = 50.0
MEMORY_SIZES = (100 << 20, 1 << 30, 4 << 30)
MEMORY_CLAIM_MIB = 100
VERSION = "1.0.0"
MANIFEST = """\
name: speed
version: 1.0.0
framework: {name: onnxruntime, version: '>=1.19 <2'}
inputs: [{type: image, layer_name: input, element_type: float32, shape: [N, 1]}]
outputs: [{type: probability, layer_name: output, element_type: float32, shape: [N, 10]}]
model: {graph_path: graph.onnx, weights_path: weights.bin}
dataset: {format: directory, path: data, index: index.txt, samples: 1}
"""
TARFILE = "import sys, tarfile; t = tarfile.open(sys.argv[2], 'w'); t.add(sys.argv[1], '.'); t.close()"
TWO_THREADS = """
import hashlib, os, sys, threading
file = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(file).st_size
def half(start, end):
    digest, buffer = hashlib.sha256(), bytearray(1 << 20)
    while start < end:
        count = os.preadv(file, [memoryview(buffer)[: end - start]], start)
        digest.update(memoryview(buffer)[:count])
        start += count
threads = [threading.Thread(target=half, args=(size * i // 2, size * (i + 1) // 2)) for i in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
SAME_DIGESTS = """
import hashlib, os, sys, threading
file = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(file).st_size
def digests(piece):
    buffer = memoryview(bytearray(1 << 20))
    for start in range(0, size, piece):
        digest, end = hashlib.sha256(), min(size, start + piece)
        while start < end:
            count = os.preadv(file, [buffer[: end - start]], start)
            digest.update(buffer[:count])
            start += count
threads = [threading.Thread(target=digests, args=(piece,)) for piece in (size, 64 << 20)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
WEIGHTS = """
import sys, numpy
left, random = int(sys.argv[2]) // 4, numpy.random.default_rng(0)
with open(sys.argv[1], 'wb') as file:
    while left:
        count = min(left, 1 << 20)
        file.write(random.standard_normal(count, dtype=numpy.float32).tobytes())
        left -= count
"""


@dataclass(frozen=True)
class Usage:
    """What one command took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


@dataclass(frozen=True)
class Way:
    """A command of a group; `prepare` runs before it, unmeasured."""

    name: str
    command: list[str]
    prepare: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Group:
    """Ways to do the same; the first is ours. `targets` are (name of another way, least ratio to it)."""

    name: str
    ways: list[Way]
    targets: dict[str, float] = field(default_factory=dict)


def measure(command: list[str], home: Path) -> Usage:
    """Run a command to its end and say what it took; its peak of memory is at least ours of the moment."""
    environment = {
        **os.environ,
        "MLBUNDLE_HOME": str(home),
        "NO_PROXY": "127.0.0.1",
        "PYTHONPYCACHEPREFIX": str(home.with_name("pycache")),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(
            f"{' '.join(command)[:300]}\nends with {process.returncode}: {said.decode()[-2000:]}"
        )
    return Usage(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def make_sources(folder: Path, weights_bytes: int, small_files: int, *, sparse: bool = False) -> None:
    """Write a manifest, a file of weights and small files that look like pictures."""
    draw = random.Random(0)
    (folder / "data").mkdir(parents=True)
    (folder / "model.yml").write_text(MANIFEST)
    (folder / "graph.onnx").write_bytes(draw.randbytes(4096))
    if sparse:
        with (folder / "weights.bin").open("wb") as file:
            file.truncate(weights_bytes)
    else:
        subprocess.run(
            [sys.executable, "-c", WEIGHTS, str(folder / "weights.bin"), str(weights_bytes)], check=True
        )
    (folder / "data/index.txt").write_text("00000.png 0\n")
    for number in range(small_files):
        data = b"\x89PNG\r\n\x1a\n" + draw.randbytes(draw.randrange(30_000, 60_000))
        (folder / f"data/{number:05}.png").write_bytes(data)


def remove(*paths: Path) -> Callable[[], None]:
    """Return what removes files and folders and lets the disk come to rest."""

    def run() -> None:
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        os.sync()

    return run


class Registry:
    """A registry on this machine that can be made empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.host = f"127.0.0.1:{probe.getsockname()[1]}"

    def renew(self) -> None:
        """Start it again with nothing in it."""
        self.stop()
        self._folder.mkdir()
        settings = {
            "version": 0.1,
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "data")}},
            "http": {"addr": self.host},
        }
        (self._folder / "config.yml").write_text(json.dumps(settings))
        with (self._folder / "log").open("wb") as log:
            command = ["docker-registry", "serve", str(self._folder / "config.yml")]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for _ in range(500):
            try:
                straight.open(f"http://{self.host}/v2/", timeout=2).close()
            except OSError:
                time.sleep(0.02)
            else:
                os.sync()
                return
        raise SystemExit(f"the registry does not start: {(self._folder / 'log').read_text()[-500:]}")

    def stop(self) -> None:
        """End it and remove what it held."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True)
class Bench:
    """Where the data of a run lie."""

    folder: Path
    registry: Registry

    @property
    def sources(self) -> Path:
        """The folder with the manifest and its files."""
        return self.folder / "sources"

    @property
    def bundle(self) -> Path:
        """They, packed."""
        return self.folder / "in.mlb"

    @property
    def layout(self) -> Path:
        """The bundle as a folder, for tools that want one."""
        return self.folder / "layout"

    @property
    def home(self) -> Path:
        """The library."""
        return self.folder / "home"

    def push(self) -> list[str]:
        """Return the command that sends the bundle to the registry."""
        return [*MLBUNDLE, "push", str(self.bundle), f"{self.registry.host}/speed", "--plain-http"]


def pack_group(bench: Bench) -> Group:
    source, out, others = str(bench.sources), bench.folder / "out.mlb", bench.folder / "out"
    clean = remove(out, others, others.with_suffix(".zip"))

    def shell(text: str) -> list[str]:
        return ["bash", "-ec", f'set -o pipefail; {text}; sync "$2"', "-", source, str(others)]

    ways = [
        Way("mlbundle pack", [*MLBUNDLE, "pack", source, "-o", str(out)], clean),
        Way("tar c", shell('tar c -C "$1" . > "$2"'), clean),
        Way("tar c, zstd -1 -T0", shell('tar c -C "$1" . | zstd -q -1 -T0 > "$2"'), clean),
        Way("python tarfile", shell(f'"{sys.executable}" -c "{TARFILE}" "$1" "$2"'), clean),
        Way("zip -0", shell('cd "$1"; zip -q -0 -r "$2.zip" .; mv "$2.zip" "$2"'), clean),
    ]
    return Group("pack", ways, {"tar c": 0.75, "tar c, zstd -1 -T0": 1.8})


def verify_group(bench: Bench) -> Group:
    ways = [
        Way("mlbundle verify", [*MLBUNDLE, "verify", str(bench.bundle)]),
        Way("hashlib, the same digests", [sys.executable, "-c", SAME_DIGESTS, str(bench.bundle)]),
        Way("hashlib, half each", [sys.executable, "-c", TWO_THREADS, str(bench.bundle)]),
        Way("sha256sum", ["sha256sum", str(bench.bundle)]),
    ]
    return Group("verify", ways, {"hashlib, the same digests": 0.9})


def unpack_group(bench: Bench) -> Group:
    ours, others, tar = bench.folder / "unpacked", bench.folder / "untarred", bench.folder / "plain.tar"
    clean = remove(ours, others)

    def prepare() -> None:
        if not tar.exists():
            subprocess.run(["tar", "c", "-f", str(tar), "-C", str(bench.sources), "."], check=True)
        clean()

    script = 'mkdir "$2"; tar x -C "$2" -f "$1"; find "$2" -print0 | xargs -0 sync'
    ways = [
        Way("mlbundle unpack", [*MLBUNDLE, "unpack", str(bench.bundle), "-o", str(ours)], clean),
        Way("tar x", ["bash", "-ec", script, "-", str(tar), str(others)], prepare),
    ]
    return Group("unpack", ways)


def add_group(bench: Bench) -> Group:
    copy = bench.folder / "copy"
    clean = remove(bench.home, copy)
    ways = [
        Way("mlbundle add", [*MLBUNDLE, "add", str(bench.bundle)], clean),
        Way("cp", ["bash", "-ec", 'cp "$1" "$2"; sync "$2"', "-", str(bench.bundle), str(copy)], clean),
    ]
    return Group("add", ways)


def push_group(bench: Bench) -> Group:
    target, renew = f"{bench.registry.host}/speed:{VERSION}", bench.registry.renew
    ways = [Way("mlbundle push", bench.push(), renew)]
    if shutil.which("oras"):
        local = f"{bench.layout}:{VERSION}"
        ways.append(
            Way("oras cp", ["oras", "cp", "--from-oci-layout", "--to-plain-http", local, target], renew)
        )
    if shutil.which("skopeo"):
        command = [
            *skopeo("copy"),
            "--dest-tls-verify=false",
            f"oci:{bench.layout}:{VERSION}",
            f"docker://{target}",
        ]
        ways.append(Way("skopeo copy", command, renew))
    return Group("push", ways, {"oras cp": 1.0} if shutil.which("oras") else {})


def pull_group(bench: Bench) -> Group:
    bench.registry.renew()
    measure(bench.push(), bench.home)
    source, copy = f"{bench.registry.host}/speed:{VERSION}", bench.folder / "pulled"
    clean = remove(bench.home, copy)
    tail = '; find "$0" -type f -print0 | xargs -0 sync'

    def synced(command: list[str]) -> list[str]:
        return ["bash", "-ec", '"$@"' + tail, str(copy), *command]

    ways = [Way("mlbundle pull", [*MLBUNDLE, "pull", source, "--plain-http"], clean)]
    if shutil.which("oras"):
        command = ["oras", "cp", "--from-plain-http", "--to-oci-layout", source, f"{copy}:{VERSION}"]
        ways.append(Way("oras cp", synced(command), clean))
    if shutil.which("skopeo"):
        command = [*skopeo("copy"), "--src-tls-verify=false", f"docker://{source}", f"oci:{copy}:{VERSION}"]
        ways.append(Way("skopeo copy", synced(command), clean))
    return Group("pull", ways, {"oras cp": 1.0} if shutil.which("oras") else {})


def skopeo(verb: str) -> list[str]:
    return ["skopeo", "--insecure-policy", verb]


GROUPS: dict[str, Callable[[Bench], Group]] = {
    "pack": pack_group,
    "verify": verify_group,
    "unpack": unpack_group,
    "add": add_group,
    "push": push_group,
    "pull": pull_group,
}


@contextmanager
def bench_of(folder: Path, weights_bytes: int, small_files: int, *, sparse: bool = False) -> Iterator[Bench]:
    """Make sources and their bundle; all is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="mlbundle-speed-", dir=folder) as name:
        bench = Bench(Path(name), Registry(Path(name) / "registry"))
        try:
            make_sources(bench.sources, weights_bytes, small_files, sparse=sparse)
            measure([*MLBUNDLE, "pack", str(bench.sources), "-o", str(bench.bundle)], bench.home)
            yield bench
        finally:
            bench.registry.stop()


def speeds(folder: Path, weights_bytes: int, rounds: int, chosen: list[str]) -> list[dict[str, Any]]:
    """Measure the chosen groups; returns the rows of the table."""
    rows: list[dict[str, Any]] = []
    with bench_of(folder, weights_bytes, SMALL_FILES) as bench:
        size_bytes = bench.bundle.stat().st_size
        bench.layout.mkdir()
        subprocess.run(["tar", "x", "-C", str(bench.layout), "-f", str(bench.bundle)], check=True)
        for name in chosen:
            group = GROUPS[name](bench)
            found: dict[str, list[Usage]] = {way.name: [] for way in group.ways}
            for _ in range(rounds):
                for way in group.ways:
                    way.prepare()
                    found[way.name].append(measure(way.command, bench.home))
            rows += group_rows(group, found, size_bytes)
            group.ways[0].prepare()
    return rows


def group_rows(group: Group, found: dict[str, list[Usage]], size_bytes: int) -> list[dict[str, Any]]:
    """Return one row for each way: medians, ours over each other way, and what that ratio should be."""
    ours = found[group.ways[0].name]
    return [
        {
            "group": group.name,
            "way": name,
            "mb_per_s": round(statistics.median(size_bytes / 1e6 / usage.wall_s for usage in usages)),
            "cpu_s": round(statistics.median(usage.cpu_s for usage in usages), 2),
            "ratio": None if usages is ours else round(ratio(usages, ours), 2),
            "target": group.targets.get(name),
        }
        for name, usages in found.items()
    ]


def ratio(theirs: list[Usage], ours: list[Usage]) -> float:
    """Return how many times as fast ours is: the median over the rounds."""
    return statistics.median(their.wall_s / our.wall_s for their, our in zip(theirs, ours, strict=True))


def memory(folder: Path) -> list[dict[str, Any]]:
    """Return the peak of memory of each command for the three sizes, in MiB."""
    rows = []
    for size_bytes in MEMORY_SIZES:
        peaks: dict[str, Any] = {"size": size_bytes}
        with bench_of(folder, size_bytes, SMALL_FILES // 10, sparse=True) as bench:
            for name in GROUPS:
                way = GROUPS[name](bench).ways[0]
                way.prepare()
                peaks[name] = round(measure(way.command, bench.home).peak_mib)
                way.prepare()
        rows.append(peaks)
    return rows


def inspections(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Return the CPU time of `inspect` in ms: its own, over an idle interpreter, over `mlbundle --version`."""
    rows = []
    for what, weights_bytes, small_files in (
        ("one file of 4 GiB", INSPECT_BYTES, 1),
        ("3,000 small files", 4 << 20, INSPECT_FILES),
    ):
        with bench_of(folder, weights_bytes, small_files, sparse=True) as bench:
            commands = {
                "inspect": [*MLBUNDLE, "inspect", str(bench.bundle)],
                "idle": [sys.executable, "-c", "pass"],
                "version": [*MLBUNDLE, "--version"],
            }
            found: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(max(7, 3 * rounds)):
                for name, command in commands.items():
                    found[name].append(measure(command, bench.home).cpu_s * 1e3)
        median = {name: statistics.median(values) for name, values in found.items()}
        rows.append(
            {
                "what": what,
                "cpu_ms": round(median["inspect"], 1),
                "over_interpreter_ms": round(median["inspect"] - median["idle"], 1),
                "over_version_ms": round(median["inspect"] - median["version"], 1),
            }
        )
    return rows


def bytes_of(text: str) -> int:
    """Return a size such as 512M or 2G in bytes."""
    units = {"K": 10, "M": 20, "G": 30}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 0)
    return int(float(number) * (1 << unit)) & ~3


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=bytes_of, default=1 << 30, help="bytes of weights, such as 512M  [1G]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--only", default=",".join(GROUPS), help="groups to measure  [all]")
    parser.add_argument("--no-inspect", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    chosen = [name for name in arguments.only.split(",") if name]
    if not set(chosen) <= set(GROUPS):
        parser.error(f"--only takes some of {', '.join(GROUPS)}")
    if not shutil.which("docker-registry"):
        chosen = [name for name in chosen if name not in {"push", "pull"}]
    facts = machine_facts()
    result: dict[str, Any] = {
        "benchmark": "bundle",
        "size": arguments.size,
        "rounds": arguments.rounds,
        "machine": f"{facts.cpu_model}, {facts.cpu_usable} CPUs, Python {platform.python_version()}",
        "load": round(os.getloadavg()[0], 2),
        "speeds": speeds(arguments.folder, arguments.size, arguments.rounds, chosen) if chosen else [],
        "inspect": [] if arguments.no_inspect else inspections(arguments.folder, arguments.rounds),
        "memory": [] if arguments.no_memory else memory(arguments.folder),
    }
    result["missed"] = missed(result)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        report(result)
    return 1 if result["missed"] else 0


def missed(result: dict[str, Any]) -> list[str]:
    """Return the claims that do not hold, in words."""
    return [
        *(
            f"{row['group']}: x{row['ratio']} of {row['way']}, not x{row['target']}"
            for row in result["speeds"]
            if row["target"] is not None and row["ratio"] < row["target"]
        ),
        *(
            f"inspect of {row['what']}: {row['over_interpreter_ms']} ms"
            for row in result["inspect"]
            if row["over_interpreter_ms"] > INSPECT_CLAIM_MS
        ),
        *(
            f"{name}: {peak} MiB for {row['size'] >> 20} MiB"
            for row in result["memory"]
            for name, peak in row.items()
            if name != "size" and peak > MEMORY_CLAIM_MIB
        ),
    ]


def report(result: dict[str, Any]) -> None:
    """Print the tables in Markdown."""
    print(f"{result['machine']}; load {result['load']}; median of {result['rounds']} rounds;")
    print(f"{result['size'] / 1e6:,.0f} MB of weights and {SMALL_FILES:,} small files\n")
    if result["speeds"]:
        print("| | MB/s | CPU s | ours is | target |\n| --- | ---: | ---: | ---: | ---: |")
    for row in result["speeds"]:
        ratio = f"x{row['ratio']:.2f}" if row["ratio"] else ""
        target = f"x{row['target']}" if row["target"] else ""
        print(f"| `{row['way']}` | {row['mb_per_s']:,} | {row['cpu_s']:.2f} | {ratio} | {target} |")
    if result["inspect"]:
        print("\n| `inspect`, CPU ms | in all | over the interpreter | over `--version` |")
        print("| --- | ---: | ---: | ---: |")
    for row in result["inspect"]:
        print(
            f"| {row['what']} | {row['cpu_ms']} | {row['over_interpreter_ms']} | {row['over_version_ms']} |"
        )
    if result["memory"]:
        print(f"\n| peak MiB | {' | '.join(GROUPS)} |\n| --- | {' | '.join('---:' for _ in GROUPS)} |")
    for row in result["memory"]:
        print(f"| {row['size'] >> 20} MiB | {' | '.join(str(row[name]) for name in GROUPS)} |")
    print(f"\nmissed: {'; '.join(result['missed']) or 'nothing'}")


if __name__ == "__main__":
    raise SystemExit(main())
