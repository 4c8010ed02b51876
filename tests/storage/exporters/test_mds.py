from __future__ import annotations

import importlib.util
import itertools
import json
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from concurrent_loader import export
from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.exporters import mds

pytestmark = pytest.mark.usefixtures("no_leaks")

HERE = Path(__file__).parent


def read_shard(folder: Path, shard: dict[str, Any]) -> list[dict[str, bytes]]:
    """Encoded values by column: a reader written from the layout alone."""
    data = (folder / shard["raw_data"]["basename"]).read_bytes()
    assert len(data) == shard["raw_data"]["bytes"]
    (num_samples,) = struct.unpack_from("<I", data)
    assert num_samples == shard["samples"]
    offsets = struct.unpack_from(f"<{num_samples + 1}I", data, 4)
    config = json.loads(data[4 + 4 * (num_samples + 1) : offsets[0]])
    assert config == {name: value for name, value in shard.items() if name not in ("raw_data", "samples", "zip_data")}
    found = []
    for start, end in itertools.pairwise(offsets):
        variable = [
            name for name, size in zip(shard["column_names"], shard["column_sizes"], strict=True) if size is None
        ]
        lengths = dict(zip(variable, struct.unpack_from(f"<{len(variable)}I", data, start), strict=True))
        at = start + 4 * len(variable)
        values = {}
        for name, size in zip(shard["column_names"], shard["column_sizes"], strict=True):
            length = lengths[name] if size is None else size
            values[name] = data[at : at + length]
            at += length
        assert at == end
        found.append(values)
    assert offsets[-1] == len(data)
    return found


def test_every_value_is_in_its_sample(dataset, samples, tmp_path):
    report = export(dataset, tmp_path, "mds", shard_size="4KiB")
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["version"] == 2
    assert len(index["shards"]) == report.num_files > 2
    assert dict(zip(index["shards"][0]["column_names"], index["shards"][0]["column_encodings"], strict=True)) == {
        "image": "jpeg",
        "label": "int",
        "name.de": "str",
        "info": "json",
        "box": "ndarray:float32:2,2",
        "points": "ndarray:int16",
        "raw": "bytes",
        "weight": "float64",
        "flag": "uint8",
    }
    found = [sample for shard in index["shards"] for sample in read_shard(tmp_path, shard)]
    assert len(found) == 20
    for got, expected in zip(found, samples, strict=True):
        assert got["image"] == expected["image"]
        assert got["raw"] == expected["raw"]
        assert got["name.de"].decode() == expected["name.de"]
        assert json.loads(got["info"]) == expected["info"]
        assert np.frombuffer(got["label"], "<i8") == expected["label"]
        assert np.frombuffer(got["weight"], "<f8") == expected["weight"]
        assert got["flag"] == bytes([expected["flag"]])
        assert got["box"] == expected["box"].tobytes()
        assert got["points"] == bytes([2 << 2, *expected["points"].shape]) + expected["points"].tobytes()


def test_the_bytes_are_those_of_streamings_own_writer(write, tmp_path, monkeypatch):
    golden = golden_program(monkeypatch)
    columns = {
        "label": "int64",
        "name.de": "str",
        "points": "int16[...]",
        "box": "float32[2,2]",
        "raw": "bytes",
        "weight": "float16",
        "flag": "bool",
        "tags": "json",
    }
    rows = [golden.golden_sample(number) for number in range(4)]
    write(tmp_path / "in", [{**row, "flag": bool(row["flag"])} for row in rows], columns, None, shard_size="1MiB")
    export(tmp_path / "in", tmp_path / "out", "mds")
    for name in ("index.json", "shard.00000.mds"):
        assert (tmp_path / "out" / name).read_bytes() == (HERE / "golden" / "mds" / name).read_bytes()


def golden_program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program that wrote the golden files, without the package that it imports."""
    streaming = ModuleType("streaming")
    streaming.MDSWriter = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "streaming", streaming)
    spec = importlib.util.spec_from_file_location("make_mds_golden", HERE / "make_mds_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("length", "width"), [(255, 1), (256, 2), (65535, 2), (65536, 4)])
def test_dimensions_have_the_smallest_type(write, tmp_path, length, width):
    value = np.zeros((length, 1), np.uint8)
    write(tmp_path / "in", [{"x": value}], {"x": "uint8[...]"}, None)
    export(tmp_path / "in", tmp_path / "out", "mds")
    (shard,) = json.loads((tmp_path / "out" / "index.json").read_text())["shards"]
    (sample,) = read_shard(tmp_path / "out", shard)
    shape = np.array([length, 1], f"<u{width}").tobytes()
    assert sample["x"] == bytes([2 << 2 | {1: 0, 2: 1, 4: 2}[width]]) + shape + value.tobytes()


@pytest.mark.parametrize("shape", [(), (0, 2)])
def test_arrays_that_mds_cannot_hold_are_refused(write, tmp_path, shape):
    write(tmp_path / "in", [{"x": np.zeros(shape, np.uint8)}], {"x": "uint8[...]"}, None)
    with pytest.raises(SchemaError, match="without numbers or dimensions") as caught:
        export(tmp_path / "in", tmp_path / "out", "mds")
    assert (caught.value.column, caught.value.sample) == ("x", 0)


def test_a_shard_above_the_limit_of_its_offsets_is_refused(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(mds, "_MAX_OFFSET", 5000)
    with pytest.raises(SchemaError, match="smaller --shard-size"):
        export(dataset, tmp_path / "out", "mds")
    assert not list((tmp_path / "out").glob("*.mds"))
    assert export(dataset, tmp_path / "small", "mds", shard_size="2KiB").num_samples == 20


def test_an_empty_dataset_has_an_index_only(write, tmp_path):
    write(tmp_path / "in", [], allow_empty=True)
    export(tmp_path / "in", tmp_path / "out", "mds")
    assert json.loads((tmp_path / "out" / "index.json").read_text()) == {"shards": [], "version": 2}
