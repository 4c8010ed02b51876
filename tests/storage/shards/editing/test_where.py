from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.shards.editing.where import Where
from concurrent_loader.storage.shards.format.schema import Schema

SCHEMA = Schema.parse(
    {
        "image": "jpeg",
        "label": "int64",
        "small": "uint8",
        "large": "uint64",
        "score": "float32",
        "good": "bool",
        "name.en": "str",
        "box": "float32[4]",
        "info": "json",
    }
)
VALUES: dict[str, Any] = {
    "label": np.array([7, 7, 8, -1]),
    "small": np.array([0, 1, 254, 255], np.uint8),
    "large": np.array([0, 2**53 + 1, 2**63, 2**64 - 1], np.uint64),
    "score": np.array([0.1, 0.5, np.nan, np.inf], np.float32),
    "good": np.array([True, False, True, False]),
    "name.en": ["cat", "dog", "", "Ünï"],
}


def chosen(text: str) -> list[int]:
    where = Where(text, SCHEMA)
    mask = where({name: VALUES[name] for name in where.columns})
    assert (mask.dtype, mask.shape) == (np.bool_, (4,))
    return np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label == 7", [0, 1]),
        ("7 == label", [0, 1]),
        ("label == -1", [3]),
        ("0 <= small < 254", [0, 1]),
        ("small == 300", []),
        ("small > -1", [0, 1, 2, 3]),
        ("small < label", [0, 1]),
        ("label == 1 or good", [0, 2]),
        ("good", [0, 2]),
        ("not good and label == 7", [1]),
        ("good == False", [1, 3]),
        ("label in [8, -1, 9.0]", [2, 3]),
        ("label not in (8, -1)", [0, 1]),
        ("small in [256, -1, 1.5, 1, 1e999]", [1]),
        ("large == 9007199254740993", [1]),
        ("large in [9007199254740992, 18446744073709551615]", [3]),
        ("large > 9223372036854775807", [2, 3]),
        ("score == 0.1", [0]),
        ("score in [0.1]", [0]),
        ("score != score", [2]),
        ("score < 1e300", [0, 1]),
        ("name.en == 'cat'", [0]),
        ("name.en in ['dog', 'Ünï']", [1, 3]),
        ("name.en > 'b'", [0, 1, 3]),
        ("name.en == '' or (label == 7 and not name.en == 'dog')", [0, 2]),
    ],
)
def test_conditions(text: str, expected: list[int]) -> None:
    assert chosen(text) == expected


def test_the_columns_are_those_in_the_text_once() -> None:
    assert Where("good or label == 7 or label == 8", SCHEMA).columns == ("good", "label")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "label",
        "True",
        "1 == 1",
        "label = 7",
        "label == 7; good",
        "label + 1 == 8",
        "label is 7",
        "label == None",
        "label in range(3)",
        "label in small",
        "7 in label",
        "len(name.en) == 3",
        "__import__('os').system('true') == 0",
        "good if good else good",
        "(lambda: good)()",
        "[good for _ in [1]][0]",
        "f'{label}' == '7'",
        "label == 1j",
        "label[0] == 7",
        "(label := 7) == 7",
        "(" * 5000,
        "not " * 50_000 + "good",
        "-" * 100_000 + "1 == label",
        "label == 7\0",
        "x" * (2 << 20),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Where(text, SCHEMA)


@pytest.mark.parametrize(
    "text",
    ["nothing == 1", "image == 'x'", "box == 1", "info == 'x'", "name.en == 1", "label == '7'", "label in ['7']"],
)
def test_columns_of_another_type_are_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        Where(text, SCHEMA)


def test_a_missing_value_fulfils_no_comparison() -> None:
    values = {
        "label": np.ma.masked_array([1, 2, 3], [False, True, False]),
        "name.en": ["a", None, "b"],
    }
    assert Where("label > 1", SCHEMA)(values).tolist() == [False, False, True]
    assert Where("label in [2, 3]", SCHEMA)(values).tolist() == [False, False, True]
    assert Where("name.en != 'b'", SCHEMA)(values).tolist() == [True, False, False]
    assert Where("name.en not in ['b']", SCHEMA)(values).tolist() == [True, False, False]
    assert Where("name.en < 'b'", SCHEMA)(values).tolist() == [True, False, False]


@given(
    st.lists(st.integers(-3, 3), min_size=1), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.integers(-3, 3)
)
def test_like_python(labels: list[int], op: str, bound: int) -> None:
    mask = Where(f"label {op} {bound}", SCHEMA)({"label": np.array(labels)})
    assert mask.tolist() == [eval(f"label {op} {bound}", {"label": label}) for label in labels]
