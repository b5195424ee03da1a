"""Signs of life in pipes, and how images are shown to people."""

from __future__ import annotations

import re
import time

import pytest

from mlbundle.cli import image_progress, output
from mlbundle.cli.image_options import show_pairs


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_progress, "INTERVAL_S", 0.05)
    monkeypatch.setattr(image_progress, "_WORTH_TELLING_S", 0.02)


def wait(seconds: float = 0.12) -> None:
    time.sleep(seconds)


class Said:
    """What is said on stderr; how many seconds it took is the machine's affair and reads N."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._text = capsys, ""

    def text(self) -> str:
        self._text += self._capsys.readouterr().err
        return re.sub(r"\d+ s\b", "N s", self._text)

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + 60
        while words not in self.text():
            assert time.monotonic() < deadline, self.text()
            wait(0.01)


def test_a_step_that_takes_long_is_named_again_and_its_seconds_are_told(capsys) -> None:
    said = Said(capsys)
    with image_progress.steps() as report:
        report("installing 15 wheels (290 MB)")
        said.wait_for("so far")
        report("looking")
    lines = said.text().splitlines()
    assert lines[0] == "installing 15 wheels (290 MB)"
    assert lines[1] == "  installing 15 wheels (290 MB): N s so far"
    assert lines[lines.index("looking") - 1] == "  took N s"


def test_a_transfer_says_how_far_it_is_though_nothing_comes(capsys) -> None:
    said = Said(capsys)
    with image_progress.transfer("exporting") as report:
        assert report is not None
        said.wait_for("exporting: waiting for the engine, N s so far")
        report(512 << 20, 1 << 30)
        said.wait_for("exporting: 50% of 1.00 GiB, N s so far")
        report(1 << 30, 1 << 30)
        said.wait_for("exporting: 1.00 GiB are through, the engine is at work, N s so far")
    assert said.text().splitlines()[-1] == "exporting of 1.00 GiB took N s"


def test_what_fails_says_no_more_than_its_error(capsys) -> None:
    def fail() -> None:
        wait(0.03)
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"), image_progress.transfer("loading"):
        fail()
    assert "took" not in capsys.readouterr().err


def test_who_wants_quiet_has_quiet(capsys, monkeypatch) -> None:
    monkeypatch.setattr(output._state, "verbosity", -1)
    with image_progress.transfer("loading") as report:
        assert report is None
    with image_progress.steps() as step:
        step("anything")
        wait()
    assert capsys.readouterr().err == ""


def test_names_and_values_have_no_heading_and_stay_on_a_line(capsys) -> None:
    show_pairs([("written", "a.tar"), ("for", None), ("note", "a\nb\x1b[0m")])
    assert capsys.readouterr().out == "written  a.tar\nfor\nnote     a\\nb\\x1b[0m\n"


def test_the_help_of_the_images_is_not_cut(cli) -> None:
    listing = cli("images", "--help").stdout
    assert not [line for line in listing.partition("Commands:")[2].splitlines() if line.endswith("...")]
    assert "List the images that there are, and which are here." in listing
    for command in ("list", "build", "pull", "push", "export", "rm"):
        text = " ".join(cli("images", command, "--help").stdout.split())
        word = (
            "Only images"
            if command == "list"
            else {"rm": "Remove"}.get(command, command.capitalize()) + " the image"
        )
        assert f"{word} for this architecture" in text
