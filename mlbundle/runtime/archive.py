"""The worker archive: the worker's own modules as one deterministic zip, mounted read-only into any image.

No image is rebuilt for a new version of ours; the archive's sha256 stands in every run record. Entries are
stored, not compressed, so the bytes do not depend on a compression library.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from mlbundle import __version__
from mlbundle.files import write_atomically

WORKER_GROUPS = (
    "mlbundle.predictors",
    "mlbundle.operators",
    "mlbundle.metrics",
    "mlbundle.scenarios",
    "mlbundle.profilers",
)
_PACKAGES = ("wire", "worker")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = 'import runpy\n\nrunpy.run_module("mlbundle.worker", run_name="__main__")\n'


@dataclass(frozen=True)
class WorkerArchive:
    """The archive on disk, its digest and the version of the worker in it."""

    path: Path
    sha256: str
    version: str


def worker_archive(cache_dir: Path) -> WorkerArchive:
    """Return the archive of the installed worker, written once to `cache_dir` under its digest."""
    content = _archive_bytes()
    digest = hashlib.sha256(content).hexdigest()
    path = cache_dir / "worker" / f"worker-{digest[:16]}.pyz"
    if not path.is_file() or path.stat().st_size != len(content) or path.read_bytes() != content:
        write_atomically(path, content)
    return WorkerArchive(path=path, sha256=digest, version=__version__)


def _archive_bytes() -> bytes:
    package = Path(__file__).resolve().parent.parent
    entries = {"__main__.py": _MAIN, "mlbundle/__init__.py": (package / "__init__.py").read_text("utf-8")}
    for name in _PACKAGES:
        for path in (package / name).rglob("*.py"):
            entries[f"mlbundle/{path.relative_to(package).as_posix()}"] = path.read_text("utf-8")
    info = f"mlbundle-{__version__}.dist-info"
    entries[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: mlbundle\nVersion: {__version__}\n"
    entries[f"{info}/entry_points.txt"] = _entry_points()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, entries[name])
    return buffer.getvalue()


def _entry_points() -> str:
    points = metadata.distribution("mlbundle").entry_points
    lines = []
    for group in WORKER_GROUPS:
        lines.append(f"[{group}]")
        lines += sorted(f"{point.name} = {point.value}" for point in points if point.group == group)
        lines.append("")
    return "\n".join(lines)
