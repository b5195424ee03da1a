"""Makes the recording of `mlbundle tui --demo` anew: real runs of this machine, without what names it.

    python docs/screenshots/record_demo.py [RUN...]

Packs the runs that are named. Without a name it runs digits-cnn in three frameworks in containers (`mlbundle images
build` them first), two minutes in all; those runs stay in the history. Writes tui/mlbundle_tui/recorded/home.tar.xz.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = ROOT / "tui" / "mlbundle_tui" / "recorded" / "home.tar.xz"
MOST_BYTES = 1_500_000
MLBUNDLE = (sys.executable, "-m", "mlbundle")
FULL = ("--trace", "full", "--queries", "2000")
LONG = ("--trace", "none", "--duration")
# The first three have layers and kernels, the next three are long enough to be watched.
RUNS: tuple[tuple[str, ...], ...] = (
    ("--framework", "onnxruntime", *FULL),
    ("--framework", "torch", *FULL),
    ("--framework", "tensorflow", *FULL),
    ("--framework", "tensorflow", *LONG, "8s"),
    ("--framework", "torch", *LONG, "4s"),
    ("--framework", "onnxruntime", *LONG, "1500ms"),
    ("--scenario", "batched", "--duration", "400ms", "--trace", "none"),
    ("--scenario", "poisson", "--rate", "800", "--duration", "12s", "--trace", "none"),
    ("--scenario", "server", "--rate", "2000", "--quick", "--trace", "none"),
)
STOPPED = ("--framework", "torch", "--duration", "60s", "--trace", "none")
# Who is to be looked at has no need of these: raw spans are in the trace, the lock names a process.
LEFT_OUT = re.compile(r"owner\.lock|outputs\.npz|passes/([^/]+/spans\.npz|\d+-warm-up/.*)")
KERNEL = re.compile(r'("kernel": "\d+\.\d+)[^"]*"')


def main() -> None:
    """Run, anonymise, write."""
    from mlbundle.config import load_settings

    runs_dir = load_settings().runs_dir
    ids = sys.argv[1:] or [*(measured(options) for options in RUNS), stopped()]
    data = packed({run: runs_dir / run for run in sorted(ids)})
    if len(data) > MOST_BYTES:
        sys.exit(f"{len(data)} bytes are more than {MOST_BYTES}: make the runs shorter")
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(data)
    sys.stderr.write(f"{TARGET}: {len(data)} bytes, {len(ids)} runs\n")


def measured(options: tuple[str, ...]) -> str:
    """Make a run and return its id; a claim that is not met, or a result that is not valid, is worth showing."""
    sys.stderr.write(f"mlbundle run digits-cnn {' '.join(options)}\n")
    # As a user would say it: the command is in the record.
    command = [*MLBUNDLE, "run", "digits-cnn", "--runtime", "docker", *options]
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if status not in {0, 1}:
        sys.exit(status)
    return latest()


def latest() -> str:
    """Return the id of the run that was made last."""
    listed = subprocess.run([*MLBUNDLE, "runs", "list", "--json"], stdout=subprocess.PIPE, check=True).stdout
    return str(json.loads(listed)["runs"][0]["run_id"])


def stopped() -> str:
    """Make a run that is stopped in the middle, and return its id."""
    command = [*MLBUNDLE, "run", "digits-cnn", "--runtime", "docker", *STOPPED, "--detach"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    run = latest()
    time.sleep(10)
    subprocess.run([*MLBUNDLE, "-q", "runs", "stop", run], stdout=subprocess.DEVNULL, check=True)
    return run


def packed(folders: dict[str, Path]) -> bytes:
    """Return the archive of run folders; the same bytes of the same runs."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for run, folder in folders.items():
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                name = path.relative_to(folder).as_posix()
                if not LEFT_OUT.fullmatch(name):
                    data = anonymous(path)
                    entry = tarfile.TarInfo(f"data/runs/{run}/{name}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
    return lzma.compress(stream.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def anonymous(path: Path) -> bytes:
    """Return a file without what names this machine or its user; ends the program where that does not go."""
    data = path.read_bytes()
    if path.suffix in {".json", ".jsonl", ".log"}:
        text = KERNEL.sub(r'\1"', data.decode())
        for folder in private_folders():
            text = text.replace(folder, "/home/you")
        data = text.encode()
    for piece in opened(path, data):
        for name in (socket.gethostname(), *private_folders()):
            if re.search(rb"(?<![\w-])" + re.escape(name.encode()) + rb"(?![\w-])", piece):
                sys.exit(f"{path} holds {name!r}")
    return data


def private_folders() -> list[str]:
    """Return the folders whose names are nobody's business, the longest first."""
    home = os.environ.get("MLBUNDLE_HOME")
    found = {str(Path.home()), str(ROOT), sys.prefix, *([str(Path(home).absolute())] if home else [])}
    return sorted(found - {"/"}, key=len, reverse=True)


def opened(path: Path, data: bytes) -> list[bytes]:
    """Return what is in a file, unpacked."""
    if path.suffix == ".gz":
        return [gzip.decompress(data)]
    if path.suffix == ".npz":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            # Numbers may be any bytes: only what is text is looked at.
            return [
                archive.read(name)
                for name in archive.namelist()
                if b"'descr': '<U" in archive.read(name)[:128]
            ]
    return [] if path.suffix == ".npy" else [data]


if __name__ == "__main__":
    main()
