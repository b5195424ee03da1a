"""A line on stderr that says how far a long copy is; only for people, only for big files."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from mlbundle.cli import output
from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BIG_BYTES = 64 << 20
_INTERVAL_S = 0.2


@contextmanager
def byte_progress(verb: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give a callback for (bytes done, bytes in all), or None when nobody watches a terminal."""
    if not sys.stderr.isatty() or output.verbosity() < 0:
        yield None
        return
    begun = last = time.monotonic()
    shown = False

    def report(done_bytes: int, total_bytes: int) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if total_bytes < _BIG_BYTES or now - last < _INTERVAL_S:
            return
        last, shown = now, True
        rate = units.size(int(done_bytes / (now - begun)))
        text = f"{verb} {done_bytes / total_bytes:4.0%} of {units.size(total_bytes)}, {rate}/s"
        click.echo(f"\r{text:<60}", err=True, nl=False)

    try:
        yield report
    finally:
        if shown:
            click.echo(f"\r{'':<60}\r", err=True, nl=False)
