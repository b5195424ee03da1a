"""Images of frameworks, built by the command that users have, in a process beside the tests."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from support import BASE_IMAGE, command_line

LONGEST_S = 900


class ImageBuild:
    """A build in a home of its own or shared with others: those on one home take turns."""

    def __init__(self, home: Path, framework: str) -> None:
        self._said = home / f"build-{framework}.txt"
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                command_line(
                    "images", "build", framework, "--accelerator", "cpu", "--base-image", BASE_IMAGE, "--json"
                ),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, "MLBUNDLE_HOME": str(home)},
            )

    def finish(self) -> None:
        """Wait for the image; a build that failed is shown in every test that needs it."""
        status = self._process.wait(LONGEST_S)
        assert status == 0, self._said.read_text()

    def stop(self) -> None:
        """End a build that nobody waited for."""
        self._process.terminate()
        self._process.wait(LONGEST_S)


def remove_images(engine: Any, home: Path, kept: set[str]) -> None:
    """Take the images of a home from the engine, except those that had been there."""
    import docker.errors

    lock = home / "data" / "images.lock"
    entries = json.loads(lock.read_text())["images"] if lock.exists() else {}
    for entry in entries.values():
        if entry["config_digest"] not in kept:
            with suppress(docker.errors.APIError):
                engine.api.remove_image(entry["config_digest"], force=True)
