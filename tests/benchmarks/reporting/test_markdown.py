from __future__ import annotations

import pytest

from benchmarks.reporting.markdown import bulleted, number, percent, ranged, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.0, "0"),
        (7, "7"),
        (0.19412, "0.194"),
        (0.0000123, "1.23e-05"),
        (12.345, "12.3"),
        (99.96, "100"),
        (999.6, "1,000"),
        (41515.4, "41,515"),
        (1281167, "1,281,167"),
        (-0.0411, "-0.0411"),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_median_has_its_extremes_where_they_are_known() -> None:
    assert ranged(1.5, [2.0, 1.0, 1.5]) == "1.5 (1 … 2)"
    assert ranged(1.5, None) == "1.5"
    assert ranged(None, [1.0]) == "–"


def test_shares_are_percentages() -> None:
    assert percent(0.0179) == "1.8 %"
    assert percent(None) == "–"


def test_a_table_has_its_numbers_to_the_right() -> None:
    text = table(["", "a|b"], [["one", 1.0], ["two\nlines", None]])
    assert text.splitlines() == ["|  | a|b |", "| --- | ---: |", "| one | 1 |", "| two lines | – |"]
    assert table(["x", "y"], [["p|q", "r"]], num_left=2).splitlines()[1:] == ["| --- | --- |", "| p\\|q | r |"]


def test_facts_are_a_line_each() -> None:
    assert bulleted([("Cache", "cold"), ("Latency", "30 ms")]) == "- Cache: cold\n- Latency: 30 ms"
