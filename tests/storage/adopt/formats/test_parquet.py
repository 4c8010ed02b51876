"""Parquet files in place: every sample equals what pyarrow reads, and hostile files end in typed errors."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import io
import json
import os
import random
import threading
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage.adopt import adopt, convert
from concurrent_loader.storage.adopt.formats import parquet as formats_parquet
from concurrent_loader.storage.adopt.formats.parquet import Parquet
from concurrent_loader.storage.adopt.protocol import BytesReader, ForeignColumn, SourceObject
from concurrent_loader.storage.adopt.range_reader import MemoryLimit, RangeReader
from concurrent_loader.storage.errors import (
    ConfigurationError,
    DatasetChanged,
    FormatError,
    SchemaError,
    StorageError,
)
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.shards.format import parquet_file
from concurrent_loader.storage.shards.format.parquet_pages import chunk_cost, read_sizes
from concurrent_loader.storage.shards.format.transforms import check_transform
from concurrent_loader.storage.shards.manifest.manifest_file import decode
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.shards.verify import verify_dataset
from concurrent_loader.storage.stores import MemoryStore, open_store

JPEG, PNG = b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n"
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"_type": "ClassLabel", "names": ["cat", "dog", "eel"]},
    "grid": {"_type": "Array2D", "shape": [2, 3], "dtype": "float32"},
}


def table(rows: int = 100, first: int = 0) -> pa.Table:
    rng = random.Random(first)
    numbers = range(first, first + rows)
    columns = {
        "image": pa.array([{"bytes": JPEG + rng.randbytes(200 + row % 7), "path": f"{row}.jpg"} for row in numbers]),
        "label": pa.array([row % 3 for row in numbers], pa.int64()),
        "caption": pa.array([f"sample {row % 10}" for row in numbers]),
        "text": pa.array(["ä" * (row % 50) for row in numbers], pa.large_string()),
        "blob": pa.array([bytes([row % 256]) * (row % 4) for row in numbers], pa.binary()),
        "vector": pa.array([[float(row)] * (row % 5) for row in numbers], pa.list_(pa.float32())),
        "box": pa.array([[row, 1, 2, 3] for row in numbers], pa.list_(pa.int32(), 4)),
        "wide": pa.array([[row] * 300 for row in numbers], pa.list_(pa.float64(), 300)),
        "grid": pa.array([[[row, 1, 2], [3, 4, 5]] for row in numbers], pa.list_(pa.list_(pa.float32()))),
        "info": pa.array([{"a": row, "b": [row, None], "c": {"d": "x"}} for row in numbers]),
        "good": pa.array([row % 2 == 0 for row in numbers]),
        "score": pa.array([row / 3 for row in numbers], pa.float32()),
    }
    made = pa.table(columns)
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def written(data: pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(data, file, **{"row_group_size": 30, **options})
    return file.getvalue()


def expected(data: pa.Table) -> list[dict[str, Any]]:
    return [{**row, "image": row["image"]["bytes"]} for row in data.to_pylist()]


def plain(sample: Any) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in dict(sample).items()}


def folder(path: Any, *tables: pa.Table, **options: Any) -> Any:
    path.mkdir(exist_ok=True)
    for number, each in enumerate(tables):
        (path / f"{number}.parquet").write_bytes(written(each, **options))
    return path


def walk(data: bytes, **types: str) -> list[Any]:
    reader = BytesReader(data, "a.parquet")
    source = SourceObject(entry=ObjectEntry("memory://x", "a.parquet", len(data), None))
    columns = Parquet().columns(source, reader)
    for name, type_ in types.items():
        columns[name] = dataclasses.replace(columns[name], type=type_)
    return list(Parquet().walk(source, reader, columns))


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "snappy"},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "gzip", "use_dictionary": False, "write_page_checksum": True},
        {"compression": "lz4", "data_page_size": 2000, "write_page_index": True},
        {"compression": "none", "use_dictionary": False, "column_encoding": {"caption": "DELTA_BYTE_ARRAY"}},
    ],
    ids=lambda options: options["compression"],
)
def test_samples_are_those_that_pyarrow_reads(tmp_path, options):
    tables = [table(), table(45, first=100)]
    report = adopt("parquet", folder(tmp_path / "source", *tables, **options), tmp_path / "index")
    assert report.plan.columns == {
        "image": "jpeg", "label": "int64", "caption": "str", "text": "str", "blob": "bytes", "vector": "float32[...]",
        "box": "int32[4]", "wide": "float64[300]", "grid": "float32[2,3]", "info": "json", "good": "bool",
        "score": "float32",
    }  # fmt: skip
    assert report.num_samples == 145
    assert [shard.num_samples for shard in report.manifest.shards] == [30, 30, 30, 10, 30, 15]
    assert report.manifest.metadata["classes"] == {"label": ["cat", "dog", "eel"]}
    rows = expected(tables[0]) + expected(tables[1])
    with ShardDataset(tmp_path / "index") as dataset:
        assert [plain(sample) for sample in dataset[:]] == rows
        assert plain(dataset[131]) == rows[131]
        assert dataset.column("label").tolist() == [row["label"] for row in rows]


@pytest.mark.parametrize("cached", [False, True])
def test_epochs_cache_and_conversion(tmp_path, cached):
    data = table(200)
    adopt("parquet", folder(tmp_path / "source", data), tmp_path / "index", only=["image", "label", "caption", "wide"])
    convert(tmp_path / "index", tmp_path / "native")
    rows = {row["image"]: row for row in expected(data)}
    orders = []
    for place in ("index", "native"):
        options = {"cache_dir": tmp_path / f"cache-{place}"} if cached else {}
        with ShardDataset(tmp_path / place, **options) as dataset:
            order = []
            for batch in ConcurrentDataLoader(dataset, batch_size=16, shuffle=True, seed=5):
                for image, label, wide in zip(batch["image"], batch["label"].tolist(), batch["wide"], strict=True):
                    row = rows[bytes(image)]
                    assert (label, wide.tolist()) == (row["label"], row["wide"])
                    order.append(bytes(image))
            assert sorted(order) == sorted(rows)
            orders.append(order)
    assert orders[0] == orders[1]


def test_every_byte_is_verified(tmp_path):
    adopt("parquet", folder(tmp_path / "source", table()), tmp_path / "index")

    async def verify() -> Any:
        engine = FetchEngine(open_store(str(tmp_path / "index")))
        opened = lambda url: FetchEngine(open_store(url))  # noqa: E731
        return await verify_dataset(engine, await load_manifest(engine), open_source=opened)

    assert asyncio.run(verify()).problems == ()
    path = tmp_path / "source" / "0.parquet"
    whole = path.read_bytes()
    start = whole.index(b"\xff\xd8\xff") + 50
    path.write_bytes(whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :])
    assert asyncio.run(verify()).problems
    with ShardDataset(tmp_path / "index") as dataset, pytest.raises(StorageError, match=r"0\.parquet"):
        dataset[:]


def test_a_replaced_file_is_named(tmp_path):
    source = MemoryStore("memory://parquet-replaced")
    asyncio.run(source.put("a.parquet", written(table())))
    adopt("parquet", source.url, tmp_path / "index", source_options={})
    asyncio.run(source.put("a.parquet", written(table())))
    with (
        ShardDataset(tmp_path / "index", source_options={}) as dataset,
        pytest.raises(DatasetChanged),
    ):
        dataset[0]


def test_text_may_stay_in_its_place(tmp_path):
    folder(tmp_path / "source", table())
    report = adopt("parquet", tmp_path / "source", tmp_path / "index", columns={"text": "bytes"}, only=["text"])
    with ShardDataset(tmp_path / "index") as dataset:
        assert [bytes(sample["text"]).decode() for sample in dataset[:]] == table().column("text").to_pylist()
    assert report.manifest.shards[0].payload_bytes == sum(2 * (row % 50) for row in range(30))


def test_a_table_without_payload_needs_no_requests_to_the_source(tmp_path):
    folder(tmp_path / "source", table())
    adopt("parquet", tmp_path / "source", tmp_path / "index", only=["label", "caption"])
    (tmp_path / "source" / "0.parquet").unlink()
    with ShardDataset(tmp_path / "index") as dataset:
        assert dataset[57] == {"label": 0, "caption": "sample 7"}


def test_types(tmp_path):
    day = dt.date(2024, 2, 29)
    data = pa.table(
        {
            "stamp": pa.array([dt.datetime(2024, 2, 29, 1), dt.datetime(1969, 1, 1)], pa.timestamp("us")),
            "day": pa.array([day, day]),
            "price": pa.array([decimal.Decimal("1.50"), decimal.Decimal("-20.00")]),
            "word": pa.array(["a", "b"]).dictionary_encode(),
            "half": pa.array(np.array([1.5, -2], np.float16)),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
            "nothing": pa.nulls(2),
            "days": pa.array([[day], []]),
            "image": pa.array([PNG, JPEG]),
        }
    )
    report = adopt("parquet", folder(tmp_path / "source", data), tmp_path / "index")
    assert list(report.plan.columns.values()) == [
        "int64", "int64", "str", "str", "float16", "json", "bytes", "json", "json", "image",
    ]  # fmt: skip
    with ShardDataset(tmp_path / "index") as dataset:
        assert plain(dataset[0]) == {
            "stamp": 1709168400000000, "day": 19782, "price": "1.50", "word": "a", "half": 1.5, "map": [["k", 1]],
            "fixed": b"ab", "nothing": None, "days": ["2024-02-29"], "image": PNG,
        }  # fmt: skip
        assert dataset[1]["price"] == "-20.00"
    with pytest.raises(SchemaError, match=r"cannot be read as this type.*word.*int64"):
        adopt("parquet", tmp_path / "source", tmp_path / "other", columns={"word": "int64"})


@pytest.mark.parametrize(
    ("column", "type_", "match"),
    [
        (pa.array([1, None]), None, r"row group 0, row 1: the value is null; .*--column x=json"),
        (pa.array(["a", "b", None]), None, r"row group 0, row 2: the value is null"),
        (pa.array([b"a", None]), None, r"row group 0, row 1: the value is null"),
        (pa.array([[1.0], None]), None, r"row group 0, row 1: the value is null"),
        (pa.array([[1.0], [None]]), None, r"row group 0, row 0: an array has a null"),
        (pa.array([{"bytes": b"a", "path": "a"}, {"bytes": None, "path": "b"}]), None, r"row 1: .*only a path"),
        (pa.array([[1.0, 2], [3.0, 4], [5.0]]), "float64[2]", r"row group 0, row 2: an array has another shape"),
        (pa.array([[1.0, 2] * 99, [3.0]]), "float64[198]", r"row group 0, row 1: an array has another shape"),
        (pa.array([300, 1]), "int8", r"--column x=TYPE"),
        (pa.array([[b"a"]]), None, r"row group 0, row 0: a value cannot be JSON"),
    ],
)
def test_values_that_do_not_fit_are_named(tmp_path, column, type_, match):
    folder(tmp_path / "source", pa.table({"x": column}))
    with pytest.raises(FormatError, match=match) as caught:
        adopt("parquet", tmp_path / "source", tmp_path / "index", columns={"x": type_} if type_ else {})
    assert "0.parquet" in str(caught.value)


def test_nulls_are_json_if_wanted(tmp_path):
    folder(tmp_path / "source", pa.table({"x": pa.array([1, None]), "y": pa.array([None, "a"])}))
    adopt("parquet", tmp_path / "source", tmp_path / "index", columns={"x": "json", "y": "json"})
    with ShardDataset(tmp_path / "index") as dataset:
        assert list(dataset[:]) == [{"x": 1, "y": None}, {"x": None, "y": "a"}]


def test_files_of_other_columns(tmp_path):
    data = table(10)
    folder(tmp_path / "source", data.select(["label"]), data.select(["label", "score"]))
    with pytest.raises(FormatError, match=r"a field that the first samples lack.*1\.parquet.*score"):
        adopt("parquet", tmp_path / "source", tmp_path / "index")
    adopt("parquet", tmp_path / "source", tmp_path / "index", only=["label"])
    folder(tmp_path / "source", data.select(["label"]), data.select(["score"]))
    with pytest.raises(FormatError, match=r"the file lacks a column.*1\.parquet.*label"):
        adopt("parquet", tmp_path / "source", tmp_path / "other")


def test_splits_are_not_mixed(tmp_path):
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    for split in ("train", "test"):
        (source / "data" / f"{split}-00000-of-00001.parquet").write_bytes(written(table(5)))
    with pytest.raises(FormatError, match=r"several splits.*--match.*data/t[a-z]*-\*"):
        adopt("parquet", source, tmp_path / "index")
    report = adopt("parquet", source, tmp_path / "index", match="data/test-*")
    assert (report.num_samples, report.plan.num_objects) == (5, 1)


def test_rows_that_are_not_columns_are_left_out(tmp_path):
    folder(tmp_path / "source", pa.table({"a name": [1, 2], "b": [3, 4]}))
    with pytest.raises(FormatError, match="a field that the first samples lack"):
        adopt("parquet", tmp_path / "source", tmp_path / "index")
    adopt("parquet", tmp_path / "source", tmp_path / "index", only=["b"])
    with ShardDataset(tmp_path / "index") as dataset:
        assert dataset.column("b").tolist() == [3, 4]


def test_memory_for_decoding_is_limited(tmp_path, monkeypatch):
    data = [table(60, first) for first in (0, 60, 120)]
    source = folder(tmp_path / "source", *data)
    most = sum(path.stat().st_size for path in source.iterdir())
    reads, held = [], []
    hold = MemoryLimit.hold
    monkeypatch.setattr(MemoryLimit, "hold", lambda self, size: held.append(size) or hold(self, size))
    read = RangeReader.read
    monkeypatch.setattr(RangeReader, "read", lambda self, *span: reads.append(span) or read(self, *span))
    monkeypatch.setattr(formats_parquet, "_DECODING", MemoryLimit(1))  # row groups wait for each other
    report = adopt("parquet", source, tmp_path / "index", num_threads=3)
    assert report.num_samples == 180
    assert len(held) == 6
    assert 0 < min(held) <= max(held) <= 4 * most
    assert len(reads) < 3 * 6 + 20  # a row group is one request, whatever the number of its columns
    with ShardDataset(tmp_path / "index") as dataset:
        assert [each["label"] for each in dataset[:]] == [row % 3 for row in range(180)]


def test_a_limit_on_memory():
    limit, entered = MemoryLimit(10), threading.Event()

    def late():
        with limit.hold(99):
            entered.set()

    thread = threading.Thread(target=late)
    with limit.hold(4), limit.hold(6):
        thread.start()
        assert not entered.wait(0.05)
    thread.join(10)
    assert entered.is_set()


def test_empty_row_groups(tmp_path):
    schema = table(1).select(["image", "label"]).schema
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for rows in (0, 3, 0):
            writer.write_table(table(rows).select(["image", "label"]).cast(schema))
    assert len(walk((tmp_path / "a.parquet").read_bytes())) == 3


# -- damage and malice -------------------------------------------------------------------------------------------------


def test_what_is_no_parquet_file(tmp_path):
    whole = written(table(10))
    for data, match in [
        (b"", "not a Parquet file"),
        (b"PAR1" * 2, "not a Parquet file"),
        (whole[:-1], "no magic"),
        (whole[:-4] + b"PARE", "encrypted"),
        (whole[:-8] + b"\xff\xff\xff\x7fPAR1", "the footer is too large"),
        (whole[:-8] + b"\x09\0\0\0PAR1", "footer|header"),
    ]:
        with pytest.raises(FormatError, match=match):
            walk(data)


def test_damage_anywhere_is_a_typed_error():
    whole = written(table(20).select(["image", "label", "vector", "info"]), row_group_size=10)
    rng = random.Random(3)
    good = [(sample.name, sample.values) for sample in walk(whole)]
    outcomes = {"same": 0, "other": 0, "error": 0}
    for _ in range(60):
        at = rng.randrange(len(whole))
        data = bytearray(whole)
        data[at : at + rng.choice((1, 1, 4))] = rng.randbytes(1)
        try:
            found = [(sample.name, sample.values) for sample in walk(bytes(data))]
            outcomes["same" if found == good else "other"] += 1
        except (FormatError, SchemaError):
            outcomes["error"] += 1
    assert outcomes["error"] > 8


@pytest.mark.slow
def test_no_byte_of_a_footer_ends_the_process():
    """pyarrow's own classes for the metadata of columns abort when a histogram in a footer has another length."""
    whole = written(pa.table({"vector": pa.array([[1.0], []], pa.list_(pa.float32()))}), store_schema=False)
    size = int.from_bytes(whole[-8:-4], "little")
    num_errors = 0
    for at in range(len(whole) - 8 - size, len(whole) - 8):
        for other in (whole[at] ^ 1, whole[at] ^ 16, whole[at] ^ 128):
            try:
                walk(whole[:at] + bytes([other]) + whole[at + 1 :])
            except (FormatError, SchemaError):
                num_errors += 1
    assert num_errors > size


def test_a_footer_that_lies_about_sizes_and_places(monkeypatch):
    whole = written(table(20).select(["image"]))
    monkeypatch.setattr(parquet_file, "MAX_ROW_GROUP_BYTES", 4000)
    with pytest.raises(FormatError, match=r"row group 0 is too large.*ingest parquet"):
        walk(whole)
    monkeypatch.undo()
    # The file is cut in front of its footer, so that the chunks are beyond its end.
    size = int.from_bytes(whole[-8:-4], "little") + 8
    with pytest.raises(FormatError, match="the place of a column is impossible"):
        walk(b"PAR1" + whole[-size:])


@pytest.mark.slow
def test_a_small_file_does_not_expand_without_limit(monkeypatch):
    monkeypatch.setattr(formats_parquet, "MAX_ROW_GROUP_BYTES", 64 << 20)
    large = pa.array([bytes(1 << 18)]).dictionary_encode()
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), large.dictionary)
    data = written(pa.table({"x": repeated}), row_group_size=1 << 20, dictionary_pagesize_limit=1 << 24)
    assert len(data) < 100_000  # for 5 GB
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    with pytest.raises(FormatError, match=r"row group 0 is too large.*ingest parquet"):
        for _ in Parquet().walk(
            SourceObject(entry=ObjectEntry("memory://x", "a", len(data), None)),
            BytesReader(data),
            {"x": ForeignColumn(type="bytes")},
        ):
            pass
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 200 << 20


def test_a_repeated_value_in_lists_is_refused():
    large = pa.array(["x" * (1 << 20)]).dictionary_encode()
    inner = pa.DictionaryArray.from_arrays(pa.array(np.zeros(5000, np.int32)), large.dictionary)
    lists = pa.ListArray.from_arrays(pa.array([0, 5000], pa.int32()), inner)
    data = written(pa.table({"x": lists}), dictionary_pagesize_limit=1 << 24)
    with pytest.raises(FormatError, match=r"row group 0 is too large"):
        walk(data)


def test_deep_schemas_are_refused():
    kind = pa.int32()
    for _ in range(70):
        kind = pa.struct([("a", kind)])
    with pytest.raises(FormatError, match="nested too deeply"):
        walk(written(pa.table({"x": pa.nulls(1, kind)})))
    footer = written(pa.table({"x": [[1]]}))
    size = int.from_bytes(footer[-8:-4], "little")
    stated = read_sizes(footer[-8 - size : -8])
    assert (stated.depth, [group.num_rows for group in stated.groups]) == (3, [1])


@pytest.mark.parametrize("data", [b"", b"\x15", b"\x1c" * 100, b"\x19\xfc\xff\xff\xff\xff\x0f", b"\xff" * 40])
def test_page_headers_that_are_no_headers(data):
    with pytest.raises(FormatError):
        chunk_cost(memoryview(data), 10)
    with pytest.raises(FormatError):
        read_sizes(data)


@pytest.mark.parametrize(
    "name",
    [
        "parquet2:[]", "parquet1:", "parquet1:[]", "parquet1:{}", 'parquet1:[["a","","int64"]]', "lzma",
        'parquet1:[["a","","jpeg"]]', 'parquet1:[["a", "","bytes"]]', 'parquet1:[["a","bytes"]]', "parquet1:[[",
    ],
)  # fmt: skip
def test_unknown_transforms_are_refused(name):
    with pytest.raises(FormatError):
        check_transform(name)


def test_a_manifest_with_an_unknown_transform_is_not_opened(tmp_path):
    report = adopt("parquet", folder(tmp_path / "source", table(5)), tmp_path / "index", only=["image"])
    path = next((tmp_path / "index" / "manifests").iterdir())
    assert decode(path.read_bytes()).num_samples == report.num_samples
    from concurrent_loader.storage.shards.manifest.manifest_body import encode_unchecked
    from concurrent_loader.storage.shards.manifest.source_ranges import SourceRanges

    manifest = decode(path.read_bytes())
    ranges = manifest.table.ranges
    other = [dataclasses.replace(file, transform="parquet9:[]") for file in ranges.files]
    manifest.table.ranges = SourceRanges(other, ranges.tail_keys, ranges.rows)
    with pytest.raises(FormatError, match="unknown transform; upgrade"):
        decode(encode_unchecked(manifest))


def test_without_pyarrow(tmp_path, monkeypatch):
    adopt("parquet", folder(tmp_path / "source", table(5)), tmp_path / "index", only=["image"])
    parquet_file.load_pyarrow.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    try:
        with pytest.raises(ConfigurationError, match="pip install pyarrow"):
            adopt("parquet", tmp_path / "source", tmp_path / "other")
        with ShardDataset(tmp_path / "index") as dataset, pytest.raises(ConfigurationError, match="pip install"):
            dataset[0]
    finally:
        parquet_file.load_pyarrow.cache_clear()


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers(tmp_path, context):
    data = table(200)
    adopt("parquet", folder(tmp_path / "source", data), tmp_path / "index", only=["image", "label"])
    with ShardDataset(tmp_path / "index") as dataset:
        loader = ConcurrentDataLoader(
            dataset, batch_size=16, shuffle=True, num_workers=2, multiprocessing_context=context
        )
        for _ in range(2):
            seen = [bytes(image) for batch in loader for image in batch["image"]]
            assert sorted(seen) == sorted(row["image"] for row in expected(data))


def test_a_forked_child_reads(tmp_path):
    adopt("parquet", folder(tmp_path / "source", table(20)), tmp_path / "index", only=["image"])
    with ShardDataset(tmp_path / "index") as dataset:
        dataset[0]  # pyarrow is loaded and used in the parent
    child = os.fork()
    if not child:
        code = 1
        try:
            with ShardDataset(tmp_path / "index") as dataset:
                code = 0 if dataset[7]["image"] == expected(table(20))[7]["image"] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
def test_a_dataset_of_hugging_face(tmp_path):
    import datasets

    rows = table(20).select(["image", "label"]).to_pylist()
    features = datasets.Features(
        {"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=["cat", "dog", "eel"])}
    )
    data = datasets.Dataset.from_list(rows, features=features)
    (tmp_path / "source").mkdir()
    data.to_parquet(tmp_path / "source" / "train-00000-of-00001.parquet", batch_size=7)
    report = adopt("parquet", tmp_path / "source", tmp_path / "index")
    assert report.plan.columns == {"image": "jpeg", "label": "int64"}
    assert report.manifest.metadata["classes"] == {"label": ["cat", "dog", "eel"]}
    with ShardDataset(tmp_path / "index") as dataset:
        assert [sample["image"] for sample in dataset[:]] == [row["image"]["bytes"] for row in rows]


def with_names(labels: list[int], names: list[str]) -> pa.Table:
    features = {"label": {"_type": "ClassLabel", "names": names}}
    facts = json.dumps({"info": {"features": features}}).encode()
    return pa.table({"label": pa.array(labels, pa.int64())}).replace_schema_metadata({b"huggingface": facts})


def test_classes_keep_their_names(tmp_path):
    source = folder(tmp_path / "source", with_names([0, 1], ["cat", "dog"]), with_names([0], ["dog", "cat"]))
    with pytest.raises(FormatError, match=r"numbers its classes differently.*1\.parquet"):
        adopt("parquet", source, tmp_path / "index")
    (source / "1.parquet").unlink()
    adopt("parquet", source, tmp_path / "index")
    (source / "1.parquet").write_bytes(written(with_names([0], ["bird", "cat"])))
    with pytest.raises(SchemaError, match="numbers its classes differently"):
        adopt("parquet", source, tmp_path / "index", append=True, match="1*")
    (source / "1.parquet").write_bytes(written(with_names([2], ["cat", "dog", "eel"])))
    report = adopt("parquet", source, tmp_path / "index", append=True, match="1*")
    assert report.manifest.metadata["classes"] == {"label": ["cat", "dog", "eel"]}


def test_times_have_one_unit(tmp_path):
    times = [pa.table({"t": pa.array([5], kind)}) for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC"))]
    source = folder(tmp_path / "source", *times)
    assert adopt("parquet", source, tmp_path / "index").num_samples == 2
    for kind in (pa.timestamp("ns"), pa.date32(), pa.duration("us")):
        folder(source, *times, pa.table({"t": pa.array([5], kind)}))
        with pytest.raises(FormatError, match=r"another unit.*2\.parquet"):
            adopt("parquet", source, tmp_path / "index", overwrite=True)


def test_a_later_image_of_another_format_is_named(tmp_path):
    """Training would end at it, and converting."""
    source = folder(tmp_path / "source", pa.table({"image": [JPEG + b"x"] * 100 + [PNG]}))
    with pytest.raises(FormatError, match=r"--column image=TYPE"):
        adopt("parquet", source, tmp_path / "index")
    assert adopt("parquet", source, tmp_path / "index", columns={"image": "image"}).num_samples == 101


def test_nested_times_are_texts_or_an_error_of_ours(tmp_path):
    kind = pa.struct([("at", pa.timestamp("ns"))])
    source = folder(tmp_path / "source", pa.table({"x": pa.array([{"at": 1_000}], kind)}))
    adopt("parquet", source, tmp_path / "index")
    with ShardDataset(tmp_path / "index") as dataset:
        assert dataset[0]["x"]["at"].startswith("1970-01-01T00:00:00.000001")


def test_bytes_that_are_no_text_are_an_error_of_ours(tmp_path):
    source = folder(tmp_path / "source", pa.table({"x": pa.array([b"a", b"\xff"], pa.binary())}))
    with pytest.raises(FormatError, match=r"cannot be read.*0\.parquet"):
        adopt("parquet", source, tmp_path / "index", columns={"x": "str"})
