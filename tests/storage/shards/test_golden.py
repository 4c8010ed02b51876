"""Version 1 is pinned: shards that were written once are written and read the same way for ever."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader.storage.shards import Schema, ShardBuilder, verify_shard

GOLDEN = Path(__file__).parent / "golden"
SPECIFICATION = Path(__file__).parents[3] / "docs" / "reference" / "format.md"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return runpy.run_path(str(GOLDEN / "make_golden.py"), run_name="golden")


@pytest.mark.parametrize("name", ["raw", "empty", "nulls"])
def test_uncompressed_shards_are_written_byte_for_byte(golden: dict[str, Any], name: str) -> None:
    assert golden["build"](name) == (GOLDEN / f"{name}.cls").read_bytes()


@pytest.mark.parametrize("name", ["raw", "zstd", "empty", "nulls"])
def test_golden_shards_are_read(golden: dict[str, Any], name: str) -> None:
    data = (GOLDEN / f"{name}.cls").read_bytes()
    schema, samples = golden["DATASETS"][name]
    index = verify_shard(data)
    assert list(index.schema.to_dict().items()) == list(schema.items())
    assert index.num_samples == len(samples)
    payload = {column.name for column in index.schema.payload}
    for row, sample in enumerate(samples):
        for column, value in sample.items():
            if column in payload:
                where = index.payload_range(row, column)
                got = index.decode_value(column, row, data[where.start : where.end])
            else:
                got = index.value(column, row)
            assert (got is None) == (value is None)
            np.testing.assert_array_equal(got, value)


def test_the_golden_dictionary_is_one(golden: dict[str, Any]) -> None:
    data = (GOLDEN / "zstd.cls").read_bytes()
    assert b'"kind":"dictionary"' in data
    assert b'"codec":"zstd"' in data


def test_the_example_in_the_specification_is_what_is_written() -> None:
    lines = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ?)+)", SPECIFICATION.read_text(encoding="utf-8"), re.MULTILINE)
    builder = ShardBuilder(Schema.parse({"image": "jpeg", "label": "int8", "name": "str"}))
    builder.add({"image": b"\xff\xd8\xffA", "label": 7, "name": "a"})
    builder.add({"image": b"\xff\xd8\xffBCD", "label": -1, "name": "bé"})
    assert bytes.fromhex("".join(lines)) == builder.finish().tobytes()
