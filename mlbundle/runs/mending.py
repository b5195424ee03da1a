"""Does what `readiness` says would help: builds, pulls or pins an image, makes an environment, pulls or makes a bundle.

`Mending` does it in a process of its own, which can be stopped at any moment and needs no memory of the caller's:
`python -m mlbundle.runs.mending JSON` writes a line of JSON for each thing that happens.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.errors import Interrupted, MlbundleError, RunFailed, error_of_document, internal_error
from mlbundle.runs.readiness import Mend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlbundle.config import Settings

    Report = Callable[[str], None]
    Progress = Callable[[int, int], None]

_FOLDERS = ("data_dir", "cache_dir", "config_dir")
_LEAST_S = 0.2
_MAX_LINE = 1 << 20
_WAIT_S = 10.0


@dataclass(frozen=True)
class Step:
    """Something that happened: a line of text, or bytes done of bytes in all."""

    text: str = ""
    done_bytes: int = 0
    total_bytes: int = 0


def mend(
    what: Mend, settings: Settings, *, report: Report = lambda _line: None, progress: Progress | None = None
) -> str:
    """Do it, and return in a line what is there now.

    Raises ImageBuildFailed, RegistryUnavailable, EngineUnavailable, PythonEnvironmentFailed, StorageFailed and the
    other errors of the command that does the same.
    """
    if what.kind == "build":
        return _build(what, settings, report)
    if what.kind == "lock":
        return _lock(what, settings)
    if what.kind == "environment":
        return _environment(what, settings, report)
    if what.kind == "pull":
        return _pull(what, settings, report, progress)
    if what.kind == "generate":
        return _generate(what, settings, report, progress)
    return _bundle(what, settings, report, progress)


class Mending:
    """A mending that goes on in a process of its own; iterate over its steps, then ask for `result`."""

    def __init__(self, what: Mend, settings: Settings) -> None:
        folders = {name: str(getattr(settings, name)) for name in _FOLDERS}
        argument = json.dumps({"mend": asdict(what), "folders": folders})
        command = [sys.executable, "-P", "-m", "mlbundle.runs.mending", argument]
        # A session of its own: Ctrl+C at the terminal is for the UI, which stops this one if it is meant.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._end: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Step]:
        """Yield each step when it happens, until the end."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_MAX_LINE):
            with suppress(ValueError):
                document = json.loads(line)
                if "end" in document or "error" in document:
                    self._end = document
                else:
                    yield Step(**document)

    def result(self) -> str:
        """Return what is there now; waits for the end. Raises what went wrong, Interrupted when it was stopped."""
        self._process.wait()
        if self._end is not None and "end" in self._end:
            return str(self._end["end"])
        if self._end is not None:
            raise error_of_document(self._end["error"])
        if self._process.returncode < 0:
            raise Interrupted("stopped")
        raise RunFailed(f"the process ended with status {self._process.returncode} and said nothing")

    def terminate(self) -> None:
        """Ask it to end; does not wait for it."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def stop(self) -> None:
        """Stop it: it tidies up what the engine keeps of it, and is killed if that takes too long."""
        self.terminate()
        try:
            self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def close(self) -> None:
        """Stop it if it goes on, and close the pipe."""
        if self._process.poll() is None:
            self.stop()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _build(what: Mend, settings: Settings, report: Report) -> str:
    from mlbundle.runtime.images import build_image, built_in_framework

    built = build_image(
        built_in_framework(what.framework),
        what.accelerator,
        what.architecture,
        settings,
        base_image=what.base_image or None,
        network=what.network or None,
        report=report,
    )
    return f"built {built.ref} {built.config_digest}"


def _lock(what: Mend, settings: Settings) -> str:
    from mlbundle.errors import ImageMissing
    from mlbundle.runtime.engine import engine_client
    from mlbundle.runtime.image_list import check_pins

    with closing(engine_client()) as client:
        pins = check_pins(settings, client, names=[what.framework])
    new = [str(pin.key) for pin in pins if pin.state == "new"]
    if not new:
        raise ImageMissing(f"there is nothing to pin of {what.framework}", hint="`mlbundle images list`")
    return f"pinned {', '.join(new)}"


def _pull(what: Mend, settings: Settings, report: Report, progress: Progress | None) -> str:
    from mlbundle.runtime.engine import engine_client
    from mlbundle.runtime.image_registry import pull_image
    from mlbundle.runtime.lock import ImageKey

    key = ImageKey(what.framework, what.version, what.architecture, what.accelerator)
    report(f"pulling {what.source}")
    with closing(engine_client()) as client:
        pulled = pull_image(what.source, key, settings, client, stated=what.stated, progress=progress)
    return f"pulled {pulled.entry.ref} {pulled.entry.config_digest}"


def _environment(what: Mend, settings: Settings, report: Report) -> str:
    from mlbundle.errors import PythonEnvironmentFailed
    from mlbundle.manifest.locks import installed_lock
    from mlbundle.runtime.environments import ensure_environment

    lock = installed_lock(what.source)
    if lock is None:
        raise PythonEnvironmentFailed(f"no lock that comes with mlbundle is called {what.source!a}")
    made = ensure_environment(settings.cache_dir, what.framework.lower(), lock, report=report)
    return f"made {made.python.parent.parent}"


def _generate(what: Mend, settings: Settings, report: Report, progress: Progress | None) -> str:
    """Make a model and take it into the library; its folder goes again."""
    from mlbundle.files import locked
    from mlbundle.runs.generate import find_model_recipe, generate, order
    from mlbundle.runs.opening import bring
    from mlbundle.runs.references import resolve

    folder = settings.cache_dir / "generated" / what.source
    with locked(folder.with_name(f"{folder.name}.lock")):
        # What a killed process left here was ours alone.
        shutil.rmtree(folder, ignore_errors=True)
        try:
            wanted = order(find_model_recipe(what.source), folder=folder)
            generate(wanted, settings, report, lambda line: report(f"  {line}"))
            report(f"taking {what.source} into the library")
            entry = bring(resolve(str(folder), settings), settings, report=report, progress=progress)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return f"made {entry.reference}"


def _bundle(what: Mend, settings: Settings, report: Report, progress: Progress | None) -> str:
    from mlbundle.runs.network import Network
    from mlbundle.runs.opening import bring
    from mlbundle.runs.references import resolve

    network = Network(plain_http=what.plain_http, ca_file=Path(what.ca_file) if what.ca_file else None)
    entry = bring(resolve(what.source, settings), settings, network, report=report, progress=progress)
    return f"pulled {entry.reference}"


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def _bytes_said() -> Progress:
    """Return a callback that says how far it is, some times a second."""
    told = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= _LEAST_S or done == total:
            told = now
            _say({"done_bytes": done, "total_bytes": total})

    return progress


def main(argument: str) -> int:
    """Do what the JSON says, in the folders that it names, and say how it goes on stdout."""
    import signal

    from mlbundle.config import load_settings

    def stop(_signal: int, _frame: object) -> None:
        raise Interrupted("stopped")

    signal.signal(signal.SIGTERM, stop)
    document = json.loads(argument)
    try:
        data, cache, config = (Path(document["folders"][name]) for name in _FOLDERS)
        settings = replace(load_settings(), data_dir=data, cache_dir=cache, config_dir=config)
        end = mend(
            Mend(**document["mend"]),
            settings,
            report=lambda line: _say({"text": line}),
            progress=_bytes_said(),
        )
        _say({"end": end})
    except MlbundleError as error:
        _say({"error": error.to_document()})
    except Exception as error:  # noqa: BLE001 - a defect of ours is shown as one, not as a traceback
        _say({"error": internal_error(error).to_document()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
