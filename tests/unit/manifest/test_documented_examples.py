"""The manifests that the documentation shows are sound."""

from __future__ import annotations

import re
from pathlib import Path

from manifest_samples import framework_problems, model_problems

from mlbundle.manifest.versions import VersionConstraint

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "manifests.md").read_text("utf-8")


def test_examples_have_no_errors() -> None:
    model, framework = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert model_problems(model) == []
    assert [p.split(" ", 2)[2] for p in framework_problems(framework)] == [
        "/containers/arm64/cpu: the image 'mlbundle/onnxruntime:1.31.1-cpu-arm64' is unpinned"
    ]


def test_ranges_that_are_shown_are_ranges() -> None:
    table = PAGE.split("### Version ranges")[1].split("A pre-release")[0]
    shown = [
        text.replace("\\", "")
        for row in table.splitlines()
        if row.startswith("| `")
        for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])
    ]
    assert len(shown) == 14
    for text in shown:
        VersionConstraint.parse(text)
