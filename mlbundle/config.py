"""Folders and settings: flag > environment (`MLBUNDLE_*`) > project file > user file > default.

Nothing here writes: reading commands never rewrite a settings file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mlbundle.errors import UsageError

PROJECT_FILE = "mlbundle.toml"


@dataclass(frozen=True)
class Settings:
    """All settings of one command; `origins` says where each value came from.

    `keys` maps what the terminal UI can do to the keys that do it, where they are not its own; the UI checks them.
    """

    data_dir: Path
    cache_dir: Path
    config_dir: Path
    runtime: str = "auto"
    trace_level: str = "model"
    memory_bytes: int = 2 << 30
    pids: int = 256
    out_bytes: int = 1 << 30
    scratch_bytes: int = 512 << 20
    hang_timeout_s: float = 120.0
    start_timeout_s: float = 120.0
    tui_theme: str = "dark"
    keys: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    @property
    def runs_dir(self) -> Path:
        """Folder of the runs, one folder a run."""
        return self.data_dir / "runs"

    @property
    def user_file(self) -> Path:
        """File of the user's settings, whether it is there or not."""
        return self.config_dir / PROJECT_FILE

    @property
    def images_lock(self) -> Path:
        """File with the digests of the images that were built, pulled or loaded on this machine."""
        return self.data_dir / "images.lock"

    def to_document(self) -> dict[str, Any]:
        """Return name -> {value, origin}, for `mlbundle config show`; keys are called `keys.ID`."""
        origin = self.origins.get
        found = {
            f.name: {"value": _plain(getattr(self, f.name)), "origin": origin(f.name, "default")}
            for f in fields(self)
            if f.name not in {"keys", "origins"}
        }
        keys = {
            f"keys.{name}": {"value": value, "origin": origin("keys", "default")}
            for name, value in self.keys.items()
        }
        return {**found, **keys}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _xdg(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable)
    return Path(value) if value and Path(value).is_absolute() else Path.home() / fallback


def _folders() -> tuple[dict[str, Path], str]:
    home = os.environ.get("MLBUNDLE_HOME")
    if home:
        root = Path(home).absolute()
        return {
            "data_dir": root / "data",
            "cache_dir": root / "cache",
            "config_dir": root / "config",
        }, "MLBUNDLE_HOME"
    return {
        "data_dir": _xdg("XDG_DATA_HOME", ".local/share") / "mlbundle",
        "cache_dir": _xdg("XDG_CACHE_HOME", ".cache") / "mlbundle",
        "config_dir": _xdg("XDG_CONFIG_HOME", ".config") / "mlbundle",
    }, "default"


_CHOICES = {
    "runtime": ("auto", "docker", "process"),
    "trace_level": ("none", "model", "framework", "system", "full"),
    "tui_theme": ("dark", "light", "ansi"),
}
_SETTABLE = {
    f.name: f.type
    for f in fields(Settings)
    if f.name not in {"keys", "origins", "data_dir", "cache_dir", "config_dir"}
}
_KEYS = "keys"


def _read_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    import tomllib

    try:
        with path.open("rb") as stream:
            document = tomllib.load(stream)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            f"can't read settings: {error}", where=str(path), hint="mend or remove the file"
        ) from error
    unknown = sorted(set(document) - set(_SETTABLE) - {_KEYS})
    if unknown:
        raise UsageError(
            f"unknown setting {unknown[0]!r}",
            where=str(path),
            hint=f"known settings: {', '.join(sorted(_SETTABLE))}, and the table [{_KEYS}]",
        )
    return document


def _convert(name: str, value: Any, origin: str) -> Any:
    try:
        if _SETTABLE[name] == "int":
            return int(value)
        if _SETTABLE[name] == "float":
            return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"setting {name!r} must be a number, not {value!r}", where=origin) from error
    if name in _CHOICES and value not in _CHOICES[name]:
        raise UsageError(
            f"setting {name!r} can't be {value!r}", where=origin, hint=f"one of: {', '.join(_CHOICES[name])}"
        )
    return value


def _keys_of(table: Any, where: str) -> dict[str, str]:
    """Return id -> keys with commas between, of a table whose values are texts or lists of them."""
    if not isinstance(table, dict):
        raise UsageError(f"[{_KEYS}] must be a table", where=where, hint='[keys]\n"runs.open" = "enter,o"')
    found = {}
    for name, value in _flat(table).items():
        keys = value if isinstance(value, list) else [value]
        if not keys or not all(isinstance(key, str) and key for key in keys):
            raise UsageError(
                f"the keys of {name!r} must be a text or a list of texts, not {value!r}", where=where
            )
        found[name] = ",".join(keys)
    return found


def _flat(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return `runs.open = "o"` as it is meant, with or without the quotation marks that TOML wants."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found.update(_flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value})
    return found


def load_settings() -> Settings:
    """Read settings from the user file, the project file and the environment, in rising order of rank.

    Raises UsageError for unknown names and impossible values.
    """
    folders, folder_origin = _folders()
    values: dict[str, Any] = dict(folders)
    origins = dict.fromkeys(folders, folder_origin)
    user_file = folders["config_dir"] / PROJECT_FILE
    for path in (user_file, Path(PROJECT_FILE)):
        for name, value in _read_file(path).items():
            if name != _KEYS:
                values[name] = _convert(name, value, str(path))
            elif path == user_file:
                values[name] = _keys_of(value, str(path))
            else:
                # A folder that somebody else made has no say in what the keys do.
                raise UsageError("keys belong to the user", where=str(path), hint=f"move them to {user_file}")
            origins[name] = str(path)
    for name in _SETTABLE:
        variable = f"MLBUNDLE_{name.upper()}"
        if variable in os.environ:
            values[name], origins[name] = _convert(name, os.environ[variable], variable), variable
    return Settings(**values, origins=origins)
