"""Makes the pictures in this folder anew: a run of digits-png, its trace in the packaged UI, in headless Chromium.

    python docs/screenshots/make.py

Needs Chromium on the PATH, Pillow and `mlbundle[trace,onnxruntime]`.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests"))

from chromium import Chromium, Page, chromium_program  # noqa: E402
from PIL import Image  # noqa: E402

MLBUNDLE = (sys.executable, "-m", "mlbundle.cli.main")
RUN = (
    "run",
    "digits-png",
    "--runtime",
    "process",
    "--python",
    sys.executable,
    "--duration",
    "1s",
    "--trace",
    "full",
)
SHOWN = "document.querySelectorAll('.pf-track').length > 5"
COLOURS = 64
SETTLE_S = 3


def main() -> None:
    """Make a run, open its trace, and keep what the browser shows."""
    program = chromium_program()
    if program is None:
        sys.exit("no Chromium on the PATH")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        env = {**os.environ, "MLBUNDLE_HOME": str(Path(folder) / "home")}
        subprocess.run([*MLBUNDLE, *RUN], env=env, check=True, stdout=subprocess.DEVNULL)
        opened = subprocess.Popen(
            [*MLBUNDLE, "trace", "open", "--offline", "--no-browser"],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert opened.stdout is not None
        try:
            with Chromium(program, Path(folder) / "profile", width=1280, height=1100) as browser:
                page = browser.open(opened.stdout.readline().strip())
                page.wait_for(SHOWN, "tracks")
                time.sleep(SETTLE_S)
                save(page, "timeline.png")
                # The first hit is the track, the second its first slice; of layers each slice is one.
                find(page, "normalize", hits=361, wanted=2)
                save(page, "sample.png")
                find(page, "/2/Conv", hits=200, wanted=2)
                save(page, "layers.png")
        finally:
            opened.send_signal(signal.SIGINT)
            opened.wait()


def find(page: Page, text: str, *, hits: int, wanted: int) -> None:
    """Search for a text, go to a hit, and show it whole: the keyboard goes to the timeline."""
    page.press(".pf-omnibox input")
    page.run("document.querySelector('.pf-omnibox input').select()")
    page.type(f"{text}\r")
    page.wait_for(f"document.body.innerText.includes('/ {hits}')", "hits")
    page.type("\r" * (wanted - 1))
    page.run("document.activeElement.blur()")
    page.type("ff")
    time.sleep(SETTLE_S)


def save(page: Page, name: str) -> None:
    """Keep what a page shows, in few colours: the pictures are part of the repository."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(HERE / name, optimize=True)
    sys.stderr.write(f"{name}: {(HERE / name).stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
