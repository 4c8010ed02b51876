from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from concurrent_loader.preview.read_sample import NotFetched
from concurrent_loader.preview.value_text import full_text, short_text
from concurrent_loader.storage import Column


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("int64", 7, "7"),
        ("bool", True, "True"),
        ("float32", 0.5, "0.5"),
        ("str", "a\x1b[2Jb\nc", r"a\x1b[2Jb\nc"),
        ("json", {"a": "\x9b"}, r'{"a": "\x9b"}'),
        ("bytes", b"\x00\xff", "2 B: 00 ff"),
        ("bytes", bytes(20), f"20 B: {'00 ' * 15}00 …"),
        ("jpeg", b"\xff\xd8\xff", "3 B, damaged: "),
        ("float32[...]", np.array([[0.5, 1], [2, 3]], np.float32), "float32 (2, 2): 0.5, 1.0, 2.0, 3.0"),
        ("int32[...]", np.arange(9, dtype=np.int32), "int32 (9): 0, 1, 2, 3, 4, 5, …"),
        ("int32[...]", np.zeros((0, 4), np.int32), "int32 (0, 4): "),
        ("bytes", NotFetched(5 << 20), "5.0 MiB, not fetched"),
    ],
)
def test_one_line(type_: str, value: Any, text: str) -> None:
    shown = short_text(Column("x", type_), value)
    assert shown.startswith(text)
    assert shown.isprintable()


def test_names_of_classes_are_escaped() -> None:
    names = ["cat", "\x1bdog"]
    assert short_text(Column("x", "int64"), 1, names) == r"1 (\x1bdog)"
    assert short_text(Column("x", "int64"), -1, names) == "-1"
    assert full_text(Column("x", "int64"), 0, names) == ["0 (cat)"]


def test_in_full() -> None:
    assert full_text(Column("x", "str"), "a\r\nb\x1b") == [r"a\r", r"b\x1b"]
    assert full_text(Column("x", "json"), {"a": [1]}) == ["{", '  "a": [', "    1", "  ]", "}"]
    lines = full_text(Column("x", "int64[...]"), np.arange(2000))
    assert lines[0] == "int64 (2000)"
    assert len(lines) == 2
