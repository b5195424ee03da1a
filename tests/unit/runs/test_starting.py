"""What is done for a run that is being started, told from what the installation of an environment says."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from mlbundle.runs.starting import Starting
from mlbundle.runtime.environment_steps import EnvironmentStep, Fetching, Made, Making, Placing, step_of

NUMBERS = st.integers(0, 10**6)
WORDS = st.from_regex(r"[!-~]+", fullmatch=True)
SIZES = st.just("") | st.from_regex(r"\(\d[ -~]*\)", fullmatch=True)
STEPS = (
    st.builds(Making, WORDS, NUMBERS)
    | st.builds(Fetching, NUMBERS, NUMBERS, WORDS, WORDS, SIZES)
    | st.builds(Placing, NUMBERS)
    | st.builds(Made, WORDS, NUMBERS)
)


def test_the_lines_of_an_environment_are_understood() -> None:
    starting, seen = Starting(), []
    for line in (
        "packing digits-cnn",
        Making("torch", 2),
        Fetching(1, 2, "numpy", "2.1.0", "(16.3 MB)"),
        Fetching(2, 2, "torch", "2.13.0", "(180.0 MB)"),
        Placing(2),
        Made("torch", 37),
    ):
        starting.take(str(line))
        seen.append((starting.stage, starting.share, starting.now))
    assert seen == [
        ("plan", None, ""),
        ("environment", None, "of torch"),
        ("environment", 0.0, "numpy"),
        ("environment", 0.5, "torch"),
        ("environment", 1.0, "all are here and are put in their places"),
        ("plan", None, ""),
    ]
    assert list(starting.lines)[-1] == "  the torch environment is there after 37 s"


@given(STEPS)
def test_a_line_tells_its_step_again(step: EnvironmentStep) -> None:
    assert step_of(str(step)) == step


@given(st.text())
@example(f"  ({'9' * 5000}/1) numpy 2")
def test_other_lines_tell_none(line: str) -> None:
    found = step_of(line)
    assert found is None or str(found) == line
