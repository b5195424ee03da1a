"""Tables as text: words stay whole, what does not fit gives way in an order, nothing is lost silently."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlbundle.cli.tables import cell_width, lay_out

RUNS = [
    ["20261121T154749Z-b48314", "digits-cnn:1.0.0", "online", "docker", "8.76 us", "107,526 /s"],
    ["20261121T154721Z-8c0778", "digits-cnn:1.0.0", "online", "process", "9.40 us", "100,197 /s"],
]
COLUMNS = ["run", "model", "scenario", "runtime", "trimmed mean", "throughput"]


def test_what_fits_is_a_table_of_one_line_a_row() -> None:
    assert lay_out(["a", "bb"], [["1", "2"], ["333", ""]], 80).lines == ["a    bb", "1    2", "333"]


def test_nothing_gives_way_where_nobody_has_to_make_do_with_less() -> None:
    digest = "sha256:" + "a" * 64
    layout = lay_out(["name", "digest"], [["x" * 200, digest]])
    assert layout.lines[1] == f"{'x' * 200}  {digest}"
    assert layout.headers == 1


def test_columns_that_say_the_same_in_every_row_are_told_in_a_line() -> None:
    layout = lay_out(COLUMNS, RUNS, 70)
    assert layout.lines[0].split() == ["run", "runtime", "trimmed", "mean", "throughput"]
    assert layout.lines[-1] == "the same in every row: model digits-cnn:1.0.0, scenario online"
    assert all(len(line) <= 70 for line in layout.lines)


def test_what_still_does_not_fit_is_a_block_for_each_row() -> None:
    layout = lay_out(COLUMNS, RUNS, 44)
    assert layout.headers == 0
    assert layout.lines[:5] == [
        "run           20261121T154749Z-b48314",
        "runtime       docker",
        "trimmed mean  8.76 us",
        "throughput    107,526 /s",
        "",
    ]
    assert "8.76 us" in "\n".join(layout.lines)
    assert "scenario online" in " ".join(layout.lines)


def test_spare_columns_go_before_a_table_becomes_blocks() -> None:
    layout = lay_out(COLUMNS, RUNS, 50, spare=["throughput", "runtime"])
    assert layout.lines[0].split() == ["run", "runtime", "trimmed", "mean"]
    assert "left out for want of room: throughput" in layout.lines
    assert "throughput    107,526 /s" in lay_out(COLUMNS, RUNS, 30, spare=["throughput", "runtime"]).lines


def test_one_row_alone_keeps_all_its_columns() -> None:
    text = "\n".join(lay_out(COLUMNS, RUNS[:1], 44).lines)
    assert all(cell in text for cell in RUNS[0])


def test_long_texts_go_on_below_at_a_space() -> None:
    text = "a convolutional network of many parameters that reads handwritten digits"
    layout = lay_out(["name", "description"], [["digits-cnn", text]], 40)
    assert all(len(line) <= 40 for line in layout.lines)
    assert " ".join(line[12:] for line in layout.lines[1:]) == text
    assert {line[:12].strip() for line in layout.lines[2:]} == {""}


def test_digests_are_shortened_only_where_they_do_not_fit() -> None:
    row = ["manifest digest", "sha256:" + "0123456789ab" + "c" * 52]
    assert row[1] in lay_out(["bundle", ""], [row], 100).lines[1]
    assert lay_out(["bundle", ""], [row], 80).lines[1].endswith("sha256:0123456789ab…")
    command = f"mlbundle images pull torch@{row[1]}"
    assert row[1] in " ".join(lay_out(["bundle", ""], [["hint", command]], 60).lines)
    no_digest = ["path", "a" * 80]
    assert "a" * 80 in lay_out(["bundle", ""], [no_digest], 60).lines[1]


def test_wide_characters_count_twice() -> None:
    lines = lay_out(["name", "x"], [["日本", "1"], ["abcd", "2"]], 80).lines
    assert [cell_width(line) for line in lines] == [7, 7, 7]


words = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=30)
cells = st.lists(words, max_size=6).map(" ".join)


@given(
    table=st.integers(1, 6).flatmap(
        lambda n: st.tuples(
            st.lists(words, min_size=n, max_size=n),
            st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1, max_size=5),
        )
    ),
    width=st.integers(1, 200),
)
def test_no_word_is_lost_or_broken_at_any_width(table, width) -> None:
    columns, rows = table
    said = set(" ".join(lay_out(columns, rows, width).lines).replace(",", " ").split())
    for row in rows:
        for word in " ".join(row).replace(",", " ").split():
            assert word in said
