"""MDS: golden files of mosaicml-streaming equal what its own reader returns; hostile files are errors."""

from __future__ import annotations

import bz2
import gzip
import json
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.adopt.formats.mds import MdsFormat
from concurrent_loader.storage.adopt.protocol import BytesReader, SourceObject
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.foreign_codecs import foreign_codec, split_list
from concurrent_loader.storage.shards.format.transforms import transform

MDS = MdsFormat()


def assert_equal(sources: Any, column: str, ours: Any, theirs: Any) -> None:
    """Compares a value with the one that the peer's reader returned; lists and images are decoded first."""
    if column in ("jpeg", "png"):
        ours = sources.pixels(ours)
    elif column == "jpeg_array":
        ours = [sources.pixels(part) for part in split_list("jpeg_array", ours)]
    elif column == "list_pil":
        ours = [foreign_codec("pil", "uint8[...]").decode(part) for part in split_list("mds/list", ours)]
    elif column.startswith("list_"):
        ours = [sources.pixels(part) for part in split_list("mds/list", ours)]
    elif column == "str_decimal":
        ours = Decimal(ours)
    elif column == "str_int_huge":
        ours = int(ours)
    if isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs, column


def test_every_encoding_is_read_like_the_peer_reads_it(sources: Any) -> None:
    read = sources.read(MDS, sources.folder("mds", "all"))
    expected = sources.expected("mds", "all", "expected.json")
    assert len(read.samples) == len(expected) == 4
    for ours, theirs in zip(read.samples, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for column, value in theirs.items():
            assert_equal(sources, column, ours[column], value)


def test_the_columns_are_derived(sources: Any) -> None:
    columns = sources.read(MDS, sources.folder("mds", "all")).columns
    derived = {name: (column.type, column.encoding) for name, column in columns.items()}
    assert (
        derived.items()
        >= {
            "bytes": ("bytes", ""),
            "int": ("int64", ""),
            "jpeg": ("jpeg", ""),
            "png": ("png", ""),
            "json": ("json", ""),
            "list_pil": ("bytes", ""),
            "nd_constant": ("float64[4]", ""),
            "nd_dtype": ("int16[...]", "mds/shaped"),
            "nd_dynamic": ("int64[...]", "mds/ndarray"),
            "nd_fixed": ("float32[2,3]", ""),
            "nd_large": ("uint8[20,60]", ""),
            "pil": ("uint8[...]", "pil"),
            "pil_float": ("float32[...]", "pil"),
            "str_decimal": ("str", ""),
            "str_int": ("int64", ""),
            "str_int_huge": ("str", ""),
        }.items()
    )


@pytest.mark.parametrize("case", ["modes", "bits"])
def test_images_of_all_modes_are_read_like_pillow_reads_them(sources: Any, case: str) -> None:
    read = sources.read(MDS, sources.folder("mds", case))
    for ours, theirs in zip(read.samples, sources.expected("mds", case, "expected.json"), strict=True):
        assert ours["image"].dtype == theirs["image"].dtype
        np.testing.assert_array_equal(ours["image"], theirs["image"])


DECOMPRESS = {
    "zstd": lambda data, size: zstandard.ZstdDecompressor().decompress(data, max_output_size=size),
    "gz": lambda data, _: gzip.decompress(data),
    "bz2": lambda data, _: bz2.decompress(data),
    "br": lambda data, size: transform("br", data, max_bytes=size),
    "snappy": lambda data, size: transform("snappy", data, max_bytes=size),
}


@pytest.mark.parametrize("compression", DECOMPRESS)
def test_compressed_shards_are_walked_decompressed(sources: Any, compression: str) -> None:
    def decompress(source: SourceObject, data: bytes) -> bytes:
        assert source.info["compression"] == compression
        raw: bytes = DECOMPRESS[compression](data, source.info["raw_bytes"])
        assert len(raw) == source.info["raw_bytes"]
        return raw

    read = sources.read(MDS, sources.folder("mds", compression), decompress=decompress)
    expected = sources.expected("mds", compression, "expected.json")
    for ours, theirs in zip(read.samples, expected, strict=True):
        np.testing.assert_array_equal(ours.pop("x"), theirs.pop("x"))
        assert ours == theirs


def test_a_decompressed_copy_of_a_shard_is_preferred(sources: Any) -> None:
    files = sources.folder("mds", "gz")
    for key in [key for key in files.files if key.endswith(".gz")]:
        files.files[key[:-3]] = gzip.decompress(files.files[key])
    assert len(sources.read(MDS, files).samples) == 6


@pytest.mark.parametrize("merged", [True, False])
def test_parts_of_several_writers_are_one_dataset(sources: Any, merged: bool) -> None:
    files = sources.folder("mds", "parts")
    index = files.files.pop("merged.json")
    if merged:
        files.files["index.json"] = index
    read = sources.read(MDS, files)
    assert [sample["label"] for sample in read.samples] == list(range(6))
    assert [sample["text"] for sample in read.samples] == [
        sample["text"] for sample in sources.expected("mds", "parts", "expected.json")
    ]


def test_splits_are_not_mixed(sources: Any) -> None:
    parts = sources.folder("mds", "parts").files
    names = {"a": "train", "b": "val"}
    files = sources.files({names[key[0]] + key[1:]: data for key, data in parts.items() if "/" in key})
    with pytest.raises(FormatError, match="SOURCE/train"):
        MDS.objects(files.entries(), files)


def test_hashes_of_the_index_are_kept(sources: Any) -> None:
    files = sources.folder("mds", "all")
    first = MDS.objects(files.entries(), files)[0]
    assert first.info["hashes"].keys() == {"sha1", "xxh64"}
    assert "compression" not in first.info


def test_pickled_columns_are_refused_with_the_way_out(sources: Any) -> None:
    files = sources.folder("mds", "pickled")
    (source,) = MDS.objects(files.entries(), files)
    with pytest.raises(FormatError, match=r"pickle runs its code.*ingest") as caught:
        MDS.columns(source, BytesReader(files.files[source.entry.key]))
    assert caught.value.column == "x"


@pytest.mark.parametrize(
    ("asked", "column", "type_"),
    [
        ({"jpeg": "bytes"}, "jpeg", bytes),
        ({"str_int": "int32"}, "str_int", int),
        ({"str_int": "str"}, "str_int", str),
        ({"str_int": "float64"}, "str_int", float),
        ({"nd_constant": "float64[...]"}, "nd_constant", np.ndarray),
        ({"nd_dtype": "bytes"}, "nd_dtype", bytes),
        ({"json": "str"}, "json", str),
        ({"int": "bytes"}, "int", bytes),
    ],
)
def test_a_user_may_ask_for_another_type(sources: Any, asked: dict[str, str], column: str, type_: type) -> None:
    read = sources.read(MDS, sources.folder("mds", "all"), asked=asked)
    assert all(isinstance(sample[column], type_) for sample in read.samples)


@pytest.mark.parametrize(
    ("column", "type_"),
    [("int", "float64"), ("nd_fixed", "float32[3,2]"), ("pil", "uint8[4,5,3]"), ("str", "int64"), ("json", "nonsense"),
     ("float16", "int16"), ("nd_dtype", "int8[...]"), ("str_float", "int64"), ("bytes", "float32[...]")],
)  # fmt: skip
def test_a_type_that_the_bytes_do_not_have_is_refused(sources: Any, column: str, type_: str) -> None:
    with pytest.raises(FormatError) as caught:
        sources.read(MDS, sources.folder("mds", "all"), asked={column: type_})
    assert caught.value.column == column


def test_an_array_that_does_not_fit_later_names_its_sample(sources: Any) -> None:
    with pytest.raises(FormatError, match=r"DTYPE\[\.\.\.\]") as caught:
        sources.read(MDS, sources.folder("mds", "all"), asked={"nd_dynamic": "int64[3]"})
    assert (caught.value.column, caught.value.sample) == ("nd_dynamic", 1)


# -- hostile files -----------------------------------------------------------------------------------------------------

COLUMNS = {"column_names": ["a", "b"], "column_encodings": ["int", "str"], "column_sizes": [8, None]}


def shard(samples: list[bytes], *, header: bytes | None = None) -> bytes:
    """Returns a shard of encoded samples."""
    header = json.dumps(COLUMNS).encode() if header is None else header
    start = 4 * (len(samples) + 2) + len(header)
    offsets = np.cumsum([start, *map(len, samples)]).astype("<u4")
    return struct.pack("<I", len(samples)) + offsets.tobytes() + header + b"".join(samples)


def encoded(number: int, text: bytes) -> bytes:
    return struct.pack("<Iq", len(text), number) + text


def source_files(sources: Any, data: bytes, *, samples: int = 2, **changes: Any) -> Any:
    entry = COLUMNS | {
        "version": 2, "format": "mds", "samples": samples, "compression": None, "zip_data": None,
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}},
    }  # fmt: skip
    index = {"version": 2, "shards": [entry | changes]}
    return sources.files({"index.json": json.dumps(index).encode(), "shard.00000.mds": data})


SWAPPED = json.dumps(COLUMNS | {"column_names": ["b", "a"]}).encode()
GOOD = shard([encoded(1, b"one"), encoded(2, b"two")])


def test_the_hand_made_shard_is_valid(sources: Any) -> None:
    assert sources.read(MDS, source_files(sources, GOOD)).samples == [{"a": 1, "b": "one"}, {"a": 2, "b": "two"}]
    assert sources.read(MDS, source_files(sources, shard([encoded(1, b"")], header=b""), samples=1)).samples == [
        {"a": 1, "b": ""}
    ]


def with_offset(place: int, value: int) -> bytes:
    data = bytearray(GOOD)
    struct.pack_into("<I", data, 4 * place, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (with_offset(0, 3), "number of samples differs"),
        (with_offset(1, 4), "impossible length|overlap"),
        (with_offset(1, len(GOOD)), "impossible length|impossible|not of this format"),
        (with_offset(2, 2**32 - 1), "offset of a sample"),
        (with_offset(2, 20), "offset of a sample"),
        (with_offset(3, len(GOOD) - 1), "contradict"),
        (GOOD + b"x", "bytes follow"),
        (GOOD[:-1], "offset of a sample"),
        (GOOD[:3], "ends early"),
        (b"", "ends early"),
        (shard([encoded(1, b"one"), struct.pack("<Iq", 2**32 - 1, 1) + b"two"]), "contradict"),
        (shard([encoded(1, b"one"), b"\0\0\0\0"]), "offset of a sample"),
        (shard([encoded(1, b"a"), encoded(2, b"b")], header=b"{" * 100), "not of this format"),
        (shard([encoded(1, b"a"), encoded(2, b"b")], header=b'{"x": ' * 100_000), "not of this format"),
        (shard([encoded(1, b"a"), encoded(2, b"b")], header=b" " * (1 << 20) + b"{}"), "impossible length"),
        (shard([encoded(1, b"a"), encoded(2, b"b")], header=SWAPPED),
         "other columns than the index"),
    ],
)  # fmt: skip
def test_damaged_shards_are_errors(sources: Any, data: bytes, match: str) -> None:
    with pytest.raises(FormatError, match=match) as caught:
        sources.read(MDS, source_files(sources, data))
    assert caught.value.key == "shard.00000.mds"


def test_text_that_is_not_utf8_is_an_error(sources: Any) -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        sources.read(MDS, source_files(sources, shard([encoded(1, b"one"), encoded(2, b"\xff")])))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": 1}, "another format"),
        ({"format": "json"}, "another format"),
        ({"samples": -1}, "differs"),
        ({"column_names": ["a", "a"]}, "same name"),
        ({"column_names": ["a/b", "a.b"]}, "same name"),
        ({"column_names": ["a"]}, "different lengths"),
        ({"column_names": [], "column_encodings": [], "column_sizes": []}, "different lengths"),
        ({"column_names": ["a", ""]}, "column's name"),
        ({"column_names": ["a", "x" * 65]}, "column's name"),
        ({"column_sizes": [4, None]}, "contradicts its encoding"),
        ({"column_encodings": ["int", "telepathy"]}, "unknown encoding"),
        ({"column_encodings": ["int", "ndarray:complex64"]}, "invalid encoding"),
        ({"column_encodings": ["int", "ndarray:int8:0"]}, "invalid encoding"),
        ({"column_encodings": ["int", "ndarray:int8:3,"]}, "invalid encoding"),
        ({"column_encodings": ["int", "ndarray:int8:" + "9" * 4000]}, "invalid encoding"),
        ({"column_encodings": ["int", "ndarray::3"]}, "invalid encoding"),
        ({"raw_data": {"basename": "../x", "bytes": 1, "hashes": {}}}, "outside"),
        ({"raw_data": {"basename": "/etc/passwd", "bytes": 1, "hashes": {}}}, "outside"),
        ({"raw_data": {"basename": "other.mds", "bytes": 1, "hashes": {}}}, "missing"),
        ({"raw_data": {"basename": "shard.00000.mds", "bytes": 1, "hashes": {}}}, "another size"),
        ({"raw_data": {"basename": "shard.00000.mds", "bytes": "1"}}, "not of this format"),
        ({"zip_data": {"basename": "shard.00000.mds", "bytes": len(GOOD)}, "compression": "lzma",
          "raw_data": {"basename": "x", "bytes": 1}}, "unknown compression"),
    ],
)  # fmt: skip
def test_invalid_indexes_are_errors(sources: Any, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(FormatError, match=match):
        sources.read(MDS, source_files(sources, GOOD, **changes))


def test_257_columns_are_too_many(sources: Any) -> None:
    names = [f"c{i}" for i in range(257)]
    changes = {"column_names": names, "column_encodings": ["str"] * 257, "column_sizes": [None] * 257}
    with pytest.raises(FormatError, match="too many fields"):
        sources.read(MDS, source_files(sources, GOOD, **changes))


@pytest.mark.parametrize(
    ("index", "match"),
    [
        (None, "there is no index.json"),
        (b"", "not of this format"),
        (b"\xff", "not of this format"),
        (b"[" * 100_000, "not of this format"),
        (b'{"version": 3, "shards": []}', "another version"),
        (b'{"version": 2, "shards": {}}', "not of this format"),
    ],
)
def test_an_index_that_is_none_is_an_error(sources: Any, index: bytes | None, match: str) -> None:
    files = sources.files({"shard.00000.mds": GOOD} | ({} if index is None else {"index.json": index}))
    with pytest.raises(FormatError, match=match):
        MDS.objects(files.entries(), files)


def test_shards_with_other_columns_are_named(sources: Any) -> None:
    files = source_files(sources, GOOD)
    index = json.loads(files.files["index.json"])
    index["shards"].append(index["shards"][0] | {"column_encodings": ["int", "bytes"]})
    files.files["index.json"] = json.dumps(index).encode()
    with pytest.raises(FormatError, match="other columns"):
        MDS.objects(files.entries(), files)


@given(data=st.data())
def test_mutated_shards_are_read_or_refused(data: st.DataObject) -> None:
    from_golden = data.draw(st.booleans())
    _mutate_and_read(data, from_golden)


_SOURCES: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _sources(sources: Any) -> None:
    _SOURCES.setdefault("it", sources)


def _mutate_and_read(data: st.DataObject, from_golden: bool) -> None:
    sources = _SOURCES["it"]
    if from_golden:
        files = _SOURCES.setdefault("golden", sources.folder("mds", "all"))
        key = data.draw(st.sampled_from(["index.json", "shard.00000.mds", "shard.00001.mds"]))
        files = sources.files(dict(files.files))
    else:
        files = source_files(sources, GOOD)
        key = data.draw(st.sampled_from(sorted(files.files)))
    changed = bytearray(files.files[key])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(0, min(len(changed) - 1, 4000))))
        piece = data.draw(st.binary(max_size=8))
        changed[place : place + data.draw(st.integers(0, 8))] = piece
    files.files[key] = bytes(changed)
    assert sources.outcome(MDS, files) in ("index", "walk", "parse", "read")


@pytest.mark.parametrize("at", ["en/", "train/", "a/b/"])
def test_an_index_that_merges_those_below_it_is_the_only_one(sources: Any, at: str) -> None:
    files = sources.folder("mds", "parts")
    files.files["index.json"] = files.files.pop("merged.json")
    files.files = {at + key: data for key, data in files.files.items()}
    assert len(sources.read(MDS, files).samples) == 6
