"""Which tests may run beside each other: `make test` has three processes (pytest-xdist), each takes whole files.

All files whose tests use the container engine go to one process, one after the other: they share images that take
minutes to build, and look at what the engine has left. Anybody else may be disturbed by nobody: a test states no time
that another process could spoil.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

ONE_IMAGE = frozenset({"engine", "image_home", "in_image_home"})
ALL_IMAGES = frozenset({"all_images"})


@cache
def fixtures_named(file: Path) -> frozenset[str]:
    """The fixtures of the engine that a file names, as an argument or as a text."""
    words = {
        node.arg if isinstance(node, ast.arg) else node.value
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.arg | ast.Constant)
    }
    return frozenset(word for word in words if isinstance(word, str)) & (ONE_IMAGE | ALL_IMAGES)


def rank(item: pytest.Item) -> int:
    """The engine comes first, as it is the longest chain; what needs all images, when they have been built.

    One run at a time is measured on a machine, so whoever takes the others begins with those that measure nothing.
    """
    named = fixtures_named(item.path)
    if named:
        return 1 if named & ALL_IMAGES else 0
    return 3 if item.path.parent.name == "integration" else 2


def anybody_uses(fixture: str, session: pytest.Session) -> bool:
    """Whether a test of this session, in whichever process, is declared to use a fixture."""
    return any(fixture in getattr(item, "fixturenames", ()) for item in session.items)


def scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Give each process a file at a time, in the order of collection; those that use the engine are one."""
    from xdist.scheduler import LoadFileScheduling

    class EngineInOneProcess(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "engine" if fixtures_named(config.rootpath / file) else file

    config.option.loadscopereorder = False
    return EngineInOneProcess(config, log)
