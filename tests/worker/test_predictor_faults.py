"""Whose fault it is when a bundle's own predictor fails: never ours, and it says where."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support import make_bundle

PREDICTOR = """
import sys
import numpy as np

class Handle:
    input_names = ["points"]
    output_names = ["scores"]

class Predictor:
    def open(self, model, options):
        {open}
        return Handle()
    def prepare(self, handle, feeds):
        {prepare}
        return feeds
    def predict(self, handle, batch):
        {predict}
        return [np.zeros((1, 4), np.float32)]
    def close(self, handle):
        pass
"""


def bundle_with(folder: Path, **bodies: str) -> Path:
    made = make_bundle(folder)
    text = PREDICTOR.format(**{"open": "pass", "prepare": "pass", "predict": "pass", **bodies})
    (made / "predictor.py").write_text(text)
    with (made / "model.yml").open("a") as manifest:
        manifest.write("predictor: predictor.py\n")
    return made


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        ({"open": "raise RuntimeError('no licence server')"}, ["open()", "RuntimeError: no licence server"]),
        ({"open": "sys.exit(0)"}, ["open()", "SystemExit"]),
        ({"prepare": "feeds['pints']"}, ["prepare()", "pints"]),
        ({"predict": "return None"}, ["predict()", "TypeError"]),
    ],
)
def test_what_it_raises_is_the_bundles_fault_and_says_where(cli, tmp_path, bodies, words) -> None:
    folder = bundle_with(tmp_path / "bundle", **bodies)
    run = ("run", folder, "--python", sys.executable, "--trust", "--queries", "20", "--warmup", "10ms")
    outcome = cli(*run, "--json")
    found = outcome.error(4, "worker-failed")
    assert "the bundle's own predictor" in found["message"]
    assert all(word in found["message"] for word in words), found["message"]
    assert "mistake in mlbundle" not in str(found["hint"])
