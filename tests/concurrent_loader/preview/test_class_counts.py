from __future__ import annotations

import tracemalloc

import numpy as np

from concurrent_loader.preview.class_counts import ClassCount, class_columns, class_names, count_values
from concurrent_loader.storage import Schema


def test_columns_with_classes_are_found_by_metadata_or_by_name() -> None:
    schema = Schema.parse(
        {"label": "int64", "fine_label": "uint8", "kind": "int32", "x": "int64", "split": "str", "target": "float32"}
    )
    assert class_columns(schema, {}) == ["label", "fine_label", "split"]
    assert class_columns(schema, {"classes": {"kind": ["a"]}}) == ["label", "fine_label", "kind", "split"]
    assert class_columns(Schema.parse({"label": "int64[3]", "labels": "int64[...]"}), {}) == []


def test_metadata_of_a_stranger_gives_no_names() -> None:
    for metadata in ({}, {"classes": 3}, {"classes": ["x"]}, {"classes": {"label": {"a": 1}}}):
        assert class_names(metadata, "label") == []
    assert class_names({"classes": {"label": [1, None]}}, "label") == ["1", "None"]


def test_values_without_a_name_are_counted() -> None:
    counts = count_values(np.array([-1, 5, 0, 5]), ["cat"])
    assert counts == [ClassCount(-1, "", 1), ClassCount(0, "cat", 1), ClassCount(5, "", 2)]
    assert [each.label for each in counts] == ["-1", "0 (cat)", "5"]
    assert count_values(["b", "a", "b"], []) == [ClassCount("a", "", 1), ClassCount("b", "", 2)]
    assert count_values(np.array([True, False, True]), [])[1] == ClassCount(True, "", 2)


def test_identifiers_are_not_classes() -> None:
    assert count_values(np.arange(10_001), []) == []
    assert count_values(np.array([], np.int64), []) == []


def test_one_long_text_does_not_make_all_long() -> None:
    tracemalloc.start()
    try:
        assert count_values(["x" * 10_000_000, *map(str, range(20_000))], []) == []
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
