"""Makes the pictures of the terminal UI anew: `mlbundle tui --demo`, played by a script, drawn by headless Chromium.

    python docs/screenshots/make_tui.py

Writes ui-*.png and ui-session.webp beside itself. Needs Chromium on the PATH, Pillow and `mlbundle[trace]`.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from chromium import Chromium, Page, chromium_program  # noqa: E402
from mlbundle_tui.app import MlbundleApp  # noqa: E402
from mlbundle_tui.demo import demo_context  # noqa: E402
from PIL import Image  # noqa: E402
from tui_pilot import press, settled, text_of  # noqa: E402

from mlbundle import resources  # noqa: E402
from mlbundle.config import load_settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

SIZE = (120, 34)
WIDTH, HEIGHT = 1200, 800
COLOURS = 64
LOOK_S = 0.1


@dataclass
class Camera:
    """Takes pictures of the app: `stills` have names, `frames` have the seconds that they are shown for."""

    pilot: Pilot[None]
    stills: dict[str, str] = field(default_factory=dict)
    frames: list[tuple[str, float]] = field(default_factory=list)

    def frame(self, seconds: float = 2.0, *, still: str = "") -> None:
        """Take a frame of the session; with `still` it is a picture of its own as well."""
        picture = self.pilot.app.export_screenshot(title="mlbundle tui --demo")
        self.frames.append((picture, seconds))
        if still:
            self.stills[still] = picture

    async def press(self, *keys: str) -> None:
        """Press keys and let everything come to rest."""
        await press(self.pilot, *keys)

    async def until(self, holds: Callable[[str], bool]) -> None:
        """Wait for what a run that goes on shows."""
        while not holds(text_of(self.pilot.app)):
            await asyncio.sleep(LOOK_S)


async def play(camera: Camera) -> None:
    """Choose, run, inspect, compare: the session of the README."""
    await camera.press("home")
    camera.frame(still="bundles")
    await camera.press("r")
    # torch; up past the first field to the last ones: without a trace, of which the recording is longer
    await camera.press("down", "right", "up", "up", "up", "up", "left")
    camera.frame(still="form")
    await camera.pilot.press("r")
    await camera.until(lambda shown: re.search(r"▶ measure .*\d %|▶ measure .*\d%", shown) is not None)
    for _ in range(3):
        await asyncio.sleep(1)
        camera.frame(0.9)
    camera.stills["live"] = camera.frames[-1][0]
    await camera.until(lambda shown: "enter opens the results" in shown)
    await camera.press("enter")
    camera.frame(still="run")
    await camera.press("3")
    camera.frame(1.5, still="runs")
    await open_run(camera, "trace:full")
    for name in ("latency", "layers", "kernels"):
        await show_tab(camera, name)
        camera.frame(still=name if name != "kernels" else "")
    await camera.press("escape", "home", "space", "space", "space", "4")
    camera.frame(still="compare")


async def open_run(camera: Camera, text: str) -> None:
    """Open the first run that fits a filter."""
    await camera.press("slash", *(key.replace(":", "colon") for key in text))
    await camera.press("enter", "home", "enter")


async def show_tab(camera: Camera, name: str) -> None:
    """Turn the pages of a run until the tab is there."""
    from mlbundle_tui.screens.run_page import RunPage

    for _ in range(10):
        screen = camera.pilot.app.screen
        assert isinstance(screen, RunPage), screen
        if screen.tab is not None and screen.tab.key == name:
            return
        await camera.press("right_square_bracket")
    raise AssertionError(name)


async def record() -> tuple[dict[str, str], list[tuple[str, float]]]:
    """Return name -> SVG, and the frames of the session."""
    with tempfile.TemporaryDirectory() as folder, demo_context(load_settings()) as context:
        # Where this checkout lies is nobody's business.
        place = Path(folder) / "mlbundle"
        place.symlink_to(ROOT)
        resources._PACKAGE = place / "mlbundle"
        app = MlbundleApp(context, theme="dark")
        async with app.run_test(size=SIZE) as pilot:
            await settled(pilot)
            camera = Camera(pilot)
            await play(camera)
            return camera.stills, camera.frames


def draw(page: Page, svg: str) -> Image.Image:
    """Return an SVG as a picture in few colours: the pictures are part of the repository."""
    # Fonts that would be fetched keep the text away until it is known that they can't be.
    plain = re.sub(r"@font-face\s*{.*?}", "", svg, flags=re.DOTALL)
    page.run(f"document.body.innerHTML = {json.dumps(plain)}")
    page.run("document.querySelector('svg').style.cssText = 'width:100vw;display:block'")
    height = page.run("Math.floor(document.querySelector('svg').getBoundingClientRect().height)")
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").crop((0, 0, WIDTH, height))
    return picture.quantize(COLOURS, dither=Image.Dither.NONE)


def main() -> None:
    """Play, draw, write."""
    program = chromium_program()
    if program is None:
        sys.exit("no Chromium on the PATH")
    stills, frames = asyncio.run(record())
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Chromium(program, Path(folder), width=WIDTH, height=HEIGHT) as browser,
    ):
        page = browser.open("about:blank")
        page.run("document.body.style.margin = 0")
        for name, svg in stills.items():
            write(HERE / f"ui-{name}.png", lambda path, svg=svg: draw(page, svg).save(path, optimize=True))
        first, *rest = [draw(page, svg).convert("RGB") for svg, _ in frames]
        durations = [round(1000 * seconds) for _, seconds in frames]
        write(
            HERE / "ui-session.webp",
            lambda path: first.save(
                path, save_all=True, append_images=rest, duration=durations, loop=0, lossless=True, method=6
            ),
        )


def write(path: Path, save: Callable[[Path], None]) -> None:
    """Write a file and say how big it is."""
    save(path)
    sys.stderr.write(f"{path.name}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
