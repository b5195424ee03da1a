"""Wheels of one small module, and locks that name them."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path


def tiny_wheel(
    folder: Path, name: str, version: str, *, content: str | None = None, files: dict[str, str] | None = None
) -> Path:
    """Write a wheel with one module (its version, unless `content` is given) and further files."""
    module = name.replace("-", "_").replace(".", "_").lower()
    info = f"{module}-{version}.dist-info"
    written = {
        f"{module}/__init__.py": content or f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(files or {}),
    }
    record = "".join(f"{path},,\n" for path in [*written, f"{info}/RECORD"])
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in {**written, f"{info}/RECORD": record}.items():
            archive.writestr(member, text)
    return path


def locked_line(name: str, version: str, wheel: Path) -> str:
    """The lines of a lock that name a wheel and its hash."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name}=={version} \\\n    --hash=sha256:{digest}\n"
