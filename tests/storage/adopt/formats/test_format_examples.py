"""The examples in the docstrings of the formats are run."""

from __future__ import annotations

import doctest
import importlib

import pytest

ADOPT = "concurrent_loader.storage.adopt.formats"
FORMAT = "concurrent_loader.storage.shards.format"
MODULES = [
    *(f"{ADOPT}.{name}" for name in ("foreign_values", "litdata", "litdata_json", "litdata_tree", "litdata_values")),
    *(f"{ADOPT}.{name}" for name in ("mds", "tf_example", "tfrecord")),
    *(f"{FORMAT}.{name}" for name in ("foreign_codecs", "foreign_headers", "protobuf_lists")),
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_work(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0
