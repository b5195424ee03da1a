"""The summary of spans, by hand."""

from __future__ import annotations

from span_samples import spans_of

from mlbundle.trace.spans import merge_spans
from mlbundle.trace.summary import SummaryRow, summarise


def test_no_spans_have_no_rows() -> None:
    assert summarise(spans_of()) == []


def test_names_are_counted_by_pass_in_order_of_time() -> None:
    one = spans_of(
        ("query", "query", 10, 10, -1, 0),
        ("query", "query", 20, 30, -1, 1),
        ("query", "predict", 10, 4, 0, 0),
        ("query", "predict", 20, 10, 1, 1),
        ("query", "predict", 40, 1, 1, 1),
        ("prepare", "prepare", 0, 2, -1, 0),
    )
    two = spans_of(("predict", "predict", 100, 7, -1, 0))
    assert summarise(merge_spans([one, two])) == [
        SummaryRow(0, "prepare", 1, 2, 2.0, 2),
        SummaryRow(0, "query", 2, 40, 20.0, 10),
        SummaryRow(0, "predict", 3, 15, 5.0, 4),
        SummaryRow(1, "predict", 1, 7, 7.0, 7),
    ]


def test_a_total_beyond_63_bits_is_exact() -> None:
    rows = [("t", "n", 0, 2**62 + 1, -1, -1)] * 4
    assert summarise(spans_of(*rows))[0].total_ns == 4 * (2**62 + 1)
