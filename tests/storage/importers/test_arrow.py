from __future__ import annotations

import asyncio
import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from concurrent_loader.storage.errors import ConfigurationError, CorruptData, FormatError
from concurrent_loader.storage.importers import ArrowFiles, ParquetFiles
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.stores import open_store

without_leaks = pytest.mark.usefixtures("no_leaks")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def hugging_face(features: dict[str, Any]) -> dict[str, str]:
    return {"huggingface": json.dumps({"info": {"features": features}})}


def every_type(encoded: Any, num_rows: int = 40) -> tuple[pa.Table, dict[str, tuple[str, list[Any]]]]:
    """A table, and for each column its type and values as they are expected."""
    rows = range(num_rows)
    day = dt.datetime(2026, 1, 2, 3, 4, 5)
    tensor = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    columns: dict[str, tuple[pa.Array, str, list[Any]]] = {
        "i8": (pa.array(rows, pa.int8()), "int8", list(rows)),
        "u64": (pa.array([2**63 + row for row in rows], pa.uint64()), "uint64", [2**63 + row for row in rows]),
        "f16": (pa.array(np.arange(num_rows, dtype=np.float16)), "float16", [float(row) for row in rows]),
        "f64": (pa.array([row / 3 for row in rows]), "float64", [row / 3 for row in rows]),
        "flag": (pa.array([row % 2 == 0 for row in rows]), "bool", [row % 2 == 0 for row in rows]),
        "text": (pa.array([f"é{row}" for row in rows]), "str", [f"é{row}" for row in rows]),
        "kind": (pa.array([f"k{row % 3}" for row in rows]).dictionary_encode(), "str", [f"k{row % 3}" for row in rows]),
        "raw": (pa.array([b"%d" % row for row in rows]), "bytes", [b"%d" % row for row in rows]),
        "png": (pa.array([encoded(row, "PNG") for row in rows]), "png", [encoded(row, "PNG") for row in rows]),
        "image": (
            pa.array([{"bytes": encoded(row), "path": f"{row}.jpg"} for row in rows], IMAGE), "jpeg",
            [encoded(row) for row in rows],
        ),
        "ids": (pa.array([list(range(row % 5)) for row in rows], pa.list_(pa.int32())), "int32[...]",
                [list(range(row % 5)) for row in rows]),
        "pair": (pa.array([[row, -row] for row in rows], pa.list_(pa.int64(), 2)), "int64[2]",
                 [[row, -row] for row in rows]),
        "grid": (
            pa.array([[[row, 1], [2, 3]] for row in rows], pa.list_(pa.list_(pa.float32()))), "float32[...]",
            [[[row, 1], [2, 3]] for row in rows],
        ),
        "tensor": (
            pa.ExtensionArray.from_storage(
                tensor, pa.array([[row] * 6 for row in rows], pa.list_(pa.float32(), 6))
            ), "float32[2,3]", [[[row] * 3] * 2 for row in rows],
        ),
        "nested": (pa.array([{"a": row, "b": ["x"]} for row in rows]), "json",
                   [{"a": row, "b": ["x"]} for row in rows]),
        "map": (pa.array([[("k", row)] for row in rows], pa.map_(pa.string(), pa.int64())), "json",
                [{"k": row} for row in rows]),
        "maybe": (pa.array([None if row % 7 == 6 else f"t{row}" for row in rows]), "str?",
                  [None if row % 7 == 6 else f"t{row}" for row in rows]),
        "some": (pa.array([row if row % 7 < 6 else None for row in rows]), "int64?",
                 [row if row % 7 < 6 else None for row in rows]),
        "some bytes": (pa.array([b"x" if row % 7 < 6 else None for row in rows]), "bytes?",
                       [b"x" if row % 7 < 6 else None for row in rows]),
        "some lists": (pa.array([[row] if row % 7 < 6 else None for row in rows]), "int64[...]?",
                       [[row] if row % 7 < 6 else None for row in rows]),
        "day": (pa.array([day] * num_rows), "str", ["2026-01-02 03:04:05.000000"] * num_rows),
        "price": (pa.array([Decimal("1.50")] * num_rows), "str", ["1.50"] * num_rows),
        "wait": (pa.array([dt.timedelta(seconds=row) for row in rows]), "int64", [row * 1_000_000 for row in rows]),
        "none": (pa.nulls(num_rows), "json", [None] * num_rows),
        "with space/and slash": (pa.array(rows), "int64", list(rows)),
    }  # fmt: skip
    table = pa.table({name: array for name, (array, _, _) in columns.items()})
    return table, {name.replace(" ", "_").replace("/", "."): (type_, values)
                   for name, (_, type_, values) in columns.items()}  # fmt: skip


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def write(table: pa.Table, path: Path, form: str) -> None:
    if form == "parquet":
        pq.write_table(table, path, row_group_size=9)
    elif form == "feather":
        pyarrow.feather.write_feather(table, path, chunksize=9)
    else:
        opener = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
        with opener(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=9)


@without_leaks
@pytest.mark.parametrize("form", ["parquet", "feather", "arrow", "arrows"])
def test_every_type_arrives(tmp_path: Path, url: str, encoded: Any, samples_of: Any, form: str) -> None:
    table, expected = every_type(encoded)
    write(table.slice(0, 25), tmp_path / f"a.{form}", form)
    write(table.slice(25), tmp_path / f"b.{form}", form)
    report = ingest((ParquetFiles if form == "parquet" else ArrowFiles)(tmp_path), url)
    assert report.manifest.schema == {name: type_ for name, (type_, _) in expected.items()}
    samples = samples_of(url)
    for name, (_, values) in expected.items():
        assert [plain(sample[name]) for sample in samples] == values, name


@pytest.mark.slow
@without_leaks
def test_a_remote_file_is_read_in_ranges(tmp_path: Path, url: str, samples_of: Any) -> None:
    rng = np.random.default_rng(0)
    blobs = [rng.bytes(400_000) for _ in range(40)]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"blob": blobs, "n": range(40)}), buffer, row_group_size=20)
    source = f"memory://parquet-{uuid4()}"
    asyncio.run(open_store(source).put("x.parquet", buffer.getvalue()))
    ingest(ParquetFiles(f"{source}/x.parquet"), url)
    assert [(sample["blob"], sample["n"]) for sample in samples_of(url)] == list(zip(blobs, range(40), strict=True))


def labelled(names: list[str], labels: list[int], encoded: Any) -> pa.Table:
    features = {
        "image": {"_type": "Image"},
        "label": {"names": names, "_type": "ClassLabel"},
        "tags": {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "List"},
    }
    table = pa.table(
        {
            "image": pa.array([{"bytes": encoded(at + 1), "path": None} for at in labels], IMAGE),
            "label": labels,
            "tags": [[at, at] for at in labels],
        }
    )
    return table.replace_schema_metadata(hugging_face(features))


@without_leaks
def test_class_names_of_hugging_face(tmp_path: Path, url: str, encoded: Any, samples_of: Any) -> None:
    pq.write_table(labelled(["cat", "dog"], [0, 1, 1], encoded), tmp_path / "a.parquet")
    report = ingest(ParquetFiles(tmp_path / "a.parquet"), url, append=True)
    assert report.manifest.metadata["classes"] == {"label": ["cat", "dog"], "tags": ["cat", "dog"]}
    pq.write_table(labelled(["bird", "cat"], [0, 1, -1], encoded), tmp_path / "b.parquet")
    report = ingest(ParquetFiles(tmp_path / "b.parquet"), url, append=True)
    assert report.manifest.metadata["classes"]["label"] == ["cat", "dog", "bird"]
    assert [sample["label"] for sample in samples_of(url)] == [0, 1, 1, 2, 0, -1]
    assert [sample["tags"].tolist() for sample in samples_of(url)][3:] == [[2, 2], [0, 0], [-1, -1]]


@pytest.mark.slow  # and leaves a thread of tqdm's behind
def test_what_datasets_wrote(tmp_path: Path, url: str, encoded: Any, samples_of: Any) -> None:
    import datasets  # slow to import

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "boxes": datasets.Array2D((2, 4), "float32"),
            "words": datasets.List(datasets.Value("string")),
        }
    )
    rows = {
        "image": [{"bytes": encoded(at), "path": f"{at}.jpg"} for at in range(10)],
        "label": [at % 2 for at in range(10)],
        "boxes": [[[at, 1, 2, 3], [4, 5, 6, 7]] for at in range(10)],
        "words": [["a"] * at for at in range(10)],
    }
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "x.parquet")
    report = ingest(ParquetFiles(tmp_path / "x.parquet"), url)
    assert report.manifest.metadata["classes"] == {"label": ["cat", "dog"]}
    samples = samples_of(url)
    assert [sample["image"] for sample in samples] == [image["bytes"] for image in rows["image"]]
    assert [sample["label"] for sample in samples] == rows["label"]
    assert [sample["boxes"].tolist() for sample in samples] == rows["boxes"]
    assert [sample["words"] for sample in samples] == rows["words"]


@without_leaks
def test_types_of_the_user_and_columns_left_out(tmp_path: Path, url: str, samples_of: Any) -> None:
    pq.write_table(pa.table({"a": [1, 2], "b": ["3", "4"], "c": [b"x", None]}), tmp_path / "x.parquet")
    report = ingest(ParquetFiles(tmp_path, columns={"a": "str", "b": "int32"}, drop=["c"]), url)
    assert report.manifest.schema == {"a": "str", "b": "int32"}
    assert samples_of(url) == [{"a": "1", "b": 3}, {"a": "2", "b": 4}]
    with pytest.raises(ConfigurationError, match="no such field"):
        ingest(ParquetFiles(tmp_path, drop=["d"]), url, overwrite=True)


@without_leaks
@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([b"x"] * 300 + [None]), "null"),
        (pa.array([{"bytes": b"x"}] * 300 + [{"bytes": None, "path": "a.jpg"}], IMAGE), "only the path 'a.jpg'"),
        (pa.array([[[1], [2]]] * 300 + [[[1], [2, 3]]]), "rectangular"),
        (pa.array([[1]] * 300 + [[None]]), "without nulls"),
        (pa.array([[1.0]] * 300 + [[None]]), "without nulls"),
        (pa.array([[True]] * 300 + [[None]]), "without nulls"),
        (pa.array([[[1.0], [2.0]]] * 300 + [[[1.0], [None]]]), "without nulls"),
        (pa.array([1] * 300 + [None]), "--column x=TYPE"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, url: str, array: Any, reason: str) -> None:
    write(pa.table({"x": array}), tmp_path / "x.arrow", "arrow")
    with pytest.raises(CorruptData, match=reason) as caught:
        ingest(ArrowFiles(tmp_path), url)
    assert caught.value.key == "x.arrow: row 300"
    assert ingest(ArrowFiles(tmp_path), url, on_error="skip").num_samples == 300


@without_leaks
def test_files_with_other_columns(tmp_path: Path, url: str) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "2.parquet")
    pq.write_table(pa.table({"b": [2]}), tmp_path / "3.parquet")
    report = ingest(ParquetFiles(tmp_path), url, on_error="skip")
    assert [problem.name for problem in report.skipped] == ["2.parquet", "3.parquet"]
    with pytest.raises(CorruptData, match="columns that the first file does not have"):
        ingest(ParquetFiles(tmp_path), url, overwrite=True)


@without_leaks
@pytest.mark.parametrize("form", ["parquet", "arrow", "arrows"])
def test_damaged_files(tmp_path: Path, url: str, form: str) -> None:
    importer = ParquetFiles if form == "parquet" else ArrowFiles
    table = pa.table(
        {
            "x": np.random.default_rng(0).bytes(3000).split(b"\0"),
        }
    )
    write(table, tmp_path / f"x.{form}", form)
    whole = (tmp_path / f"x.{form}").read_bytes()
    for length in range(0, len(whole) - 8, 211):  # a stream may lack its end marker
        (tmp_path / f"x.{form}").write_bytes(whole[:length])
        with pytest.raises((FormatError, CorruptData)):
            ingest(importer(tmp_path), url)


@without_leaks
def test_wrong_offsets_are_refused(tmp_path: Path, url: str) -> None:
    write(pa.table({"x": [b"abc", b"def"]}), tmp_path / "x.arrow", "arrow")
    right, wrong = (np.array([0, 3, end], np.int32).tobytes() for end in (6, 1 << 30))
    whole = (tmp_path / "x.arrow").read_bytes()
    assert whole.count(right) == 1
    (tmp_path / "x.arrow").write_bytes(whole.replace(right, wrong))
    with pytest.raises((FormatError, CorruptData), match="offsets"):
        ingest(ArrowFiles(tmp_path), url)


@without_leaks
def test_appending_the_same_files_adds_nothing(tmp_path: Path, url: str) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "x.parquet")
    assert [ingest(ParquetFiles(tmp_path), url, append=True).num_samples for _ in range(2)] == [2, 0]


@without_leaks
@pytest.mark.s3
def test_a_file_in_a_bucket(tmp_path: Path, url: str, samples_of: Any, s3_bucket: Any) -> None:
    blobs = [np.random.default_rng(at).bytes(300_000) for at in range(30)]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"blob": blobs}), buffer, row_group_size=7)

    async def fill() -> None:
        async with open_store(s3_bucket.url, **s3_bucket.storage_options) as store:
            await store.put("in/x.parquet", buffer.getvalue())

    asyncio.run(fill())
    for source in (f"{s3_bucket.url}/in", f"{s3_bucket.url}/in/x.parquet"):
        ingest(ParquetFiles(source, storage_options=s3_bucket.storage_options), url, overwrite=True)
        assert [sample["blob"] for sample in samples_of(url)] == blobs


@without_leaks
def test_files_that_number_their_classes_differently_are_refused(tmp_path: Path, url: str, encoded: Any) -> None:
    """Their names are in the metadata of the schema, which is otherwise the same."""
    pq.write_table(labelled(["cat", "dog"], [0, 1], encoded), tmp_path / "a.parquet")
    pq.write_table(labelled(["dog", "cat"], [0, 1], encoded), tmp_path / "b.parquet")
    with pytest.raises(CorruptData, match="numbers its classes differently"):
        ingest(ParquetFiles(tmp_path), url)
    report = ingest(ParquetFiles(tmp_path, drop=["label", "tags"]), url)
    assert report.num_samples == 4


@without_leaks
@pytest.mark.parametrize("kind", ["float32", "int8", "float64"])
def test_tensors_beside_nulls(tmp_path: Path, url: str, samples_of: Any, kind: str) -> None:
    flat = pa.array([[0, 1, 2, 3], None, [4, 5, 6, 7]], pa.list_(getattr(pa, kind)(), 4))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(getattr(pa, kind)(), (2, 2)), flat)
    write(pa.table({"x": tensors}), tmp_path / "x.arrow", "arrow")
    assert ingest(ArrowFiles(tmp_path), url).manifest.schema == {"x": f"{kind}[2,2]?"}
    found = [sample["x"] for sample in samples_of(url)]
    assert [None if each is None else each.tolist() for each in found] == [[[0, 1], [2, 3]], None, [[4, 5], [6, 7]]]
