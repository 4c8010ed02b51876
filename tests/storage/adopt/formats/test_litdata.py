"""LitData: golden files of litdata equal what its own reader returns; hostile files are errors."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from concurrent_loader.storage.adopt.formats.litdata import LitDataFormat
from concurrent_loader.storage.adopt.formats.litdata_json import parse_nested
from concurrent_loader.storage.adopt.formats.litdata_tree import leaf_names
from concurrent_loader.storage.adopt.protocol import SourceObject
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.foreign_codecs import split_list
from concurrent_loader.storage.shards.format.litdata_frames import unpack_batches, unpack_items

LITDATA = LitDataFormat()


def decompress(source: SourceObject, data: bytes) -> bytes:
    match source.info["compression"]:
        case "litdata/batch":
            return unpack_batches(data, max_bytes=1 << 20)
        case "litdata/sample":
            return unpack_items(data, max_bytes=1 << 20)
        case "zstd":
            raw = zstandard.ZstdDecompressor().decompress(data)
            assert len(raw) <= source.info["raw_bytes"]
            return raw
    raise AssertionError(source.info)


def flat(item: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of the item `tuple`, by the names of their columns."""
    if isinstance(item, list):
        return {k: v for i, part in enumerate(item) for k, v in flat(part, f"{prefix}{i}.").items()}
    return {prefix[:-1]: item}


def pixels(sources: Any, data: bytes) -> np.ndarray[Any, Any]:
    """Returns the pixels of a JPEG with channels first, as LitData decodes it."""
    array: np.ndarray[Any, Any] = sources.pixels(data).transpose(2, 0, 1)
    return array


def test_every_serializer_is_read_like_the_peer_reads_it(sources: Any) -> None:
    read = sources.read(LITDATA, sources.folder("litdata", "all"))
    expected = sources.expected("litdata", "all", "expected.json")
    assert len(read.samples) == len(expected) == 3
    for ours, theirs in zip(read.samples, expected, strict=True):
        theirs |= flat(theirs.pop("tuple"), "tuple.")
        assert ours.keys() == theirs.keys()
        for column, value in theirs.items():
            found = ours[column]
            if column == "jpeg":
                found = pixels(sources, found)
            elif column == "jpeg_array":
                found = [pixels(sources, part) for part in split_list("jpeg_array", found)]
            elif column == "tiff":
                found = np.asarray(Image.open(io.BytesIO(found)))
            if isinstance(value, np.ndarray):
                assert np.asarray(found).dtype == value.dtype or column == "scalar_tensor"
                np.testing.assert_array_equal(found, value)
            elif column == "jpeg_array":
                assert len(found) == len(value)
                for one, other in zip(found, value, strict=True):
                    np.testing.assert_array_equal(one, other)
            else:
                assert found == value, column


def test_the_columns_are_derived(sources: Any) -> None:
    columns = sources.read(LITDATA, sources.folder("litdata", "all")).columns
    assert {name: (column.type, column.encoding) for name, column in columns.items()} == {
        "bool": ("bool", ""),
        "bytes": ("bytes", ""),
        "float": ("float64", ""),
        "int": ("int64", ""),
        "jpeg": ("jpeg", ""),
        "jpeg_array": ("bytes", ""),
        "json": ("json", ""),
        "no_header_numpy": ("uint16[...]", "raw/1d"),
        "no_header_tensor": ("int32[...]", "raw/1d"),
        "numpy": ("float64[...]", "litdata/numpy"),
        "numpy_constant": ("float32[2,3]", ""),
        "pil": ("uint8[...]", "pil"),
        "records": ("json", ""),
        "scalar_tensor": ("float32", ""),
        "str": ("str", ""),
        "tensor": ("uint8[...]", "litdata/tensor"),
        "tensor_bool": ("bool[2,2]", ""),
        "tiff": ("bytes", ""),
        "tuple.0": ("int64", ""),
        "tuple.1.0": ("str", ""),
        "tuple.1.1": ("float64", ""),
    }


@pytest.mark.parametrize("case", ["chunk", "batch", "sample"])
def test_compressed_chunks_are_walked_decompressed(sources: Any, case: str) -> None:
    read = sources.read(LITDATA, sources.folder("litdata", case), decompress=decompress)
    expected = sources.expected("litdata", case, "expected.json")
    assert len(read.samples) == len(expected) == 5
    for ours, theirs in zip(read.samples, expected, strict=True):
        np.testing.assert_array_equal(ours.pop("x"), theirs.pop("x"))
        assert ours == theirs


def test_a_bare_leaf_is_the_column_value(sources: Any) -> None:
    read = sources.read(LITDATA, sources.folder("litdata", "leaf"))
    assert [sample["value"] for sample in read.samples] == sources.expected("litdata", "leaf", "expected.json")


def test_tokens_are_blocks_as_the_peer_reads_them(sources: Any) -> None:
    read = sources.read(LitDataFormat(block_size=4), sources.folder("litdata", "tokens"))
    expected = sources.expected("litdata", "tokens", "expected.json")
    assert read.columns["tokens"].type == "int32[4]"
    assert [sample["tokens"].tolist() for sample in read.samples] == [block.tolist() for block in expected]


def test_large_blocks_are_payload(sources: Any) -> None:
    tokens = np.arange(600, dtype="<i8")
    files = tokens_files(sources, [tokens.tobytes()], dim=600)
    read = sources.read(LitDataFormat(block_size=250), files)
    assert read.columns["tokens"].type == "int64[250]"
    np.testing.assert_array_equal(np.stack([sample["tokens"] for sample in read.samples]), tokens[:500].reshape(2, 250))


def test_without_a_block_size_each_written_item_is_a_sample(sources: Any) -> None:
    read = sources.read(LITDATA, sources.folder("litdata", "tokens"))
    assert [sample["tokens"].tolist() for sample in read.samples] == [
        [0, 1, 2, 3, 4], [10, 11, 12], [20, 21, 22, 23, 24, 25, 26, 27], [30],
    ]  # fmt: skip


def test_a_block_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        LitDataFormat(block_size=0)


@pytest.mark.parametrize(
    ("case", "match"), [("pickled", r"pickle runs its code.*ingest"), ("arrow", r"Arrow table.*ingest")]
)
def test_what_cannot_be_read_in_place_is_refused_with_the_way_out(sources: Any, case: str, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        sources.read(LITDATA, sources.folder("litdata", case))


@pytest.mark.parametrize(
    ("column", "type_", "works"),
    [("numpy_constant", "float32[...]", True), ("scalar_tensor", "float32[...]", True), ("jpeg", "image", True),
     ("no_header_tensor", "bytes", True), ("str", "bytes", True), ("json", "bytes", True),
     ("int", "int32", False), ("pil", "float32[...]", False), ("tensor", "uint8[2,200,3]", False)],
)  # fmt: skip
def test_a_user_may_ask_for_another_type_that_the_bytes_have(
    sources: Any, column: str, type_: str, works: bool
) -> None:
    files = sources.folder("litdata", "all")
    if works:
        assert sources.read(LITDATA, files, asked={column: type_}).columns[column].type == type_
    else:
        with pytest.raises(FormatError) as caught:
            sources.read(LITDATA, files, asked={column: type_})
        assert caught.value.column == column


# -- hostile files -----------------------------------------------------------------------------------------------------

LEAF = {"type": None, "context": None, "children_spec": []}


def tree(*names: str) -> str:
    return json.dumps(
        [1, {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [LEAF] * len(names)}]
    )


def chunk(items: list[bytes]) -> bytes:
    start = 4 * (len(items) + 2)
    return (
        struct.pack("<I", len(items)) + np.cumsum([start, *map(len, items)]).astype("<u4").tobytes() + b"".join(items)
    )


def item(number: int, text: bytes) -> bytes:
    return struct.pack("<IIq", 8, len(text), number) + text


GOOD = chunk([item(1, b"one"), item(2, b"two")])
CONFIG = {
    "compression": None, "data_format": ["int", "str"], "data_spec": tree("a", "b"), "encryption": None,
    "item_loader": "PyTreeLoader",
}  # fmt: skip


def chunk_files(sources: Any, data: bytes, *, chunk: dict[str, Any] | None = None, **config: Any) -> Any:
    entry = {"filename": "chunk-0-0.bin", "chunk_size": 2, "chunk_bytes": len(data), "dim": None} | (chunk or {})
    index = {"chunks": [entry], "config": CONFIG | config}
    return sources.files({"index.json": json.dumps(index).encode(), "chunk-0-0.bin": data})


def tokens_files(sources: Any, items: list[bytes], *, dim: int, **config: Any) -> Any:
    config = {"data_format": ["no_header_tensor:17"], "data_spec": json.dumps([1, LEAF])} | config
    return chunk_files(
        sources, chunk(items), chunk={"chunk_size": len(items), "dim": dim}, item_loader="TokensLoader", **config
    )


def test_the_hand_made_chunk_is_valid(sources: Any) -> None:
    assert sources.read(LITDATA, chunk_files(sources, GOOD)).samples == [{"a": 1, "b": "one"}, {"a": 2, "b": "two"}]


def with_u32(place: int, value: int) -> bytes:
    data = bytearray(GOOD)
    struct.pack_into("<I", data, 4 * place, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (with_u32(0, 3), "number of samples differs"),
        (with_u32(1, 4), "overlap"),
        (with_u32(2, 4), "offset of a sample"),
        (with_u32(2, 2**32 - 1), "offset of a sample"),
        (with_u32(3, len(GOOD) - 1), "contradict"),
        (with_u32(4, 2**32 - 1), "contradict"),
        (GOOD + b"x", "bytes follow"),
        (GOOD[:-1], "offset of a sample"),
        (GOOD[:6], "too short"),
        (b"", "ends early"),
    ],
)
def test_damaged_chunks_are_errors(sources: Any, data: bytes, match: str) -> None:
    with pytest.raises(FormatError, match=match) as caught:
        sources.read(LITDATA, chunk_files(sources, data))
    assert caught.value.key == "chunk-0-0.bin"


def test_numbers_of_the_wrong_size_are_errors(sources: Any) -> None:
    data = chunk([item(1, b"one"), struct.pack("<II", 4, 0) + bytes(4)])
    with pytest.raises(ValueError, match="wrong length"):
        sources.read(LITDATA, chunk_files(sources, data))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"encryption": {"algorithm": "fernet"}}, "encrypted"),
        ({"compression": "lz4"}, "unknown compression"),
        ({"compression": "zstd", "compression_level": "page"}, "unknown compression"),
        ({"item_loader": "ParquetLoader"}, "adopt parquet"),
        ({"item_loader": "TemporalArrayLoader"}, "ingest"),
        ({"format": "mds"}, "adopt mds"),
        ({"data_format": ["int"]}, "another number of formats"),
        ({"data_format": [], "data_spec": json.dumps([1, {**LEAF, "type": "builtins.list"}])}, "another number"),
        ({"data_format": ["int", "graph"]}, "pickle"),
        ({"data_format": ["int", "telepathy"]}, "unknown serializer"),
        ({"data_format": ["int", "no_header_tensor:10"]}, "dtype"),
        ({"data_format": ["int", "no_header_numpy:"]}, "dtype"),
        ({"data_format": ["int", "no_header_numpy:" + "9" * 5000]}, "dtype"),
        ({"data_spec": "[" * 100_000}, "not of this format"),
        ({"data_spec": json.dumps([2, LEAF])}, "unknown version"),
        ({"data_spec": tree("a", "a")}, "same name"),
        ({"data_spec": tree("a", "")}, "column's name"),
        ({"data_spec": json.dumps([1, {**LEAF, "type": "torch_geometric.Data"}])}, "unknown type"),
        ({"data_spec": json.dumps([1, {**LEAF, "type": "builtins.dict", "context": '["a"]'}])}, "number of keys"),
        ({"data_spec": json.dumps([1, {**LEAF, "type": "builtins.dict", "context": 7}])}, "number of keys"),
        ({"data_spec": "7"}, "not of this format"),
    ],
)
def test_invalid_indexes_are_errors(sources: Any, config: dict[str, Any], match: str) -> None:
    with pytest.raises(FormatError, match=match):
        sources.read(LITDATA, chunk_files(sources, GOOD, **config))


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"filename": "../chunk-0-0.bin"}, "outside"), ({"filename": "chunk-0-1.bin"}, "missing"),
     ({"chunk_size": -2}, "differs"), ({"chunk_size": "2"}, "not of this format")],
)  # fmt: skip
def test_invalid_chunk_entries_are_errors(sources: Any, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(FormatError, match=match):
        sources.read(LITDATA, chunk_files(sources, GOOD, chunk=changes))


def test_a_source_without_an_index_is_an_error(sources: Any) -> None:
    files = sources.files({"chunk-0-0.bin": GOOD})
    with pytest.raises(FormatError, match=r"there is no index\.json"):
        LITDATA.objects(files.entries(), files)


def test_tokens_that_contradict_the_index_are_errors(sources: Any) -> None:
    with pytest.raises(FormatError, match="number of tokens"):
        sources.read(LitDataFormat(block_size=2), tokens_files(sources, [bytes(64)], dim=7))
    with pytest.raises(FormatError, match="part of an element"):
        sources.read(LITDATA, tokens_files(sources, [bytes(63)], dim=8))
    with pytest.raises(FormatError, match="one leaf"):
        sources.read(LITDATA, tokens_files(sources, [b"x"], dim=1, data_format=["str"]))


def test_trees_are_bounded() -> None:
    deep: dict[str, Any] = LEAF
    for _ in range(20):
        deep = {"type": "builtins.list", "context": "null", "children_spec": [deep]}
    with pytest.raises(FormatError, match="too deep"):
        leaf_names(json.dumps([1, deep]), key="index.json")
    with pytest.raises(FormatError, match="too large"):
        leaf_names(tree(*map(str, range(300))), key="index.json")


def test_all_containers_are_named() -> None:
    spec = {
        "type": "collections.defaultdict",
        "context": {"default_factory_module": "builtins", "default_factory_name": "int", "dict_context": ["a", 7]},
        "children_spec": [
            {"type": "collections.namedtuple", "context": "x", "children_spec": [LEAF, LEAF]},
            {"type": "collections.OrderedDict", "context": '["b"]', "children_spec": [LEAF]},
        ],
    }
    assert leaf_names(json.dumps([1, spec]), key="index.json") == ["a.0", "a.1", "7.b"]


def nested(tag: int, content: bytes) -> memoryview:
    return memoryview(bytes([tag]) + content)


@pytest.mark.parametrize(
    "data",
    [
        memoryview(b""),
        memoryview(b"{"),
        memoryview(b"[" * 100_000),
        nested(12, b""),
        nested(1, struct.pack("<I", 2**32 - 1)),
        nested(2, struct.pack("<I", 2**32 - 1) + bytes(16)),
        nested(4, struct.pack("<I", 3) + bytes(2)),
        nested(5, struct.pack("<I", 2**31) + bytes(100)),
        nested(6, struct.pack("<II", 2**32 - 1, 0)),
        nested(6, struct.pack("<IIII", 2**32 - 1, 1, 0, 0)),
        nested(7, struct.pack("<I", 9) + b"x"),
        nested(7, struct.pack("<I", 1) + b"\xff"),
        nested(8, bytes(7)),
        nested(11, b"x"),
        nested(0, struct.pack("<I", 1) + b"{"),
        memoryview((bytes([5]) + struct.pack("<II", 1, 0)) * 5000),
        nested(6, struct.pack("<IIII", 1 << 20, 1, 1, 97) + bytes([16]) * (1 << 20)),
    ],
    ids=range(17),
)
def test_hostile_nested_values_are_errors(data: memoryview) -> None:
    with pytest.raises(FormatError):
        parse_nested(data)


def test_nested_json_text_of_older_releases_is_read() -> None:
    assert parse_nested(memoryview(b'{"a": [1, null]}')) == {"a": [1, None]}


@pytest.mark.parametrize(
    ("offset", "value"),
    [(0, 1), (8, 2), (12, 2**32 - 1), (20, 2**32 - 1), (20, 1), (24, 7), (28, 2**32 - 1), (44, 1), (48, 5),
     (48, 0), (52, 1), (56, 2**31), (60, 2**32 - 1), (64, 1)],
)  # fmt: skip
def test_damaged_frames_are_errors(sources: Any, offset: int, value: int) -> None:
    data = bytearray(sources.folder("litdata", "batch").files["chunk-0-0.bin"])
    before = bytes(data)
    struct.pack_into("<I", data, offset, value)
    assert bytes(data) != before
    with pytest.raises(FormatError):
        unpack_batches(data, max_bytes=1 << 20)


def test_results_larger_than_the_limit_are_errors(sources: Any) -> None:
    bomb = zstandard.compress(bytes(1 << 24))
    data = struct.pack("<III", 1, 12, 12 + len(bomb)) + bomb
    with pytest.raises(FormatError, match="too large"):
        unpack_items(data, max_bytes=1 << 20)
    with pytest.raises(FormatError, match="too large"):
        unpack_batches(sources.folder("litdata", "batch").files["chunk-0-0.bin"], max_bytes=100)


@pytest.mark.parametrize(
    "data",
    [b"", bytes(7), bytes(12), struct.pack("<III", 1, 12, 16) + b"zstd", struct.pack("<III", 1, 8, 12)],
)
def test_damaged_items_are_errors(data: bytes) -> None:
    with pytest.raises(FormatError):
        unpack_items(data, max_bytes=1 << 20)


@given(data=st.data())
def test_mutated_chunks_are_read_or_refused(data: st.DataObject) -> None:
    sources = SHARED["sources"]
    files = data.draw(st.sampled_from([SHARED["all"], SHARED["tokens"], SHARED["made"]]))
    files = sources.files(dict(files.files))
    key = data.draw(st.sampled_from([key for key in sorted(files.files) if key != "expected.json"]))
    changed = bytearray(files.files[key])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, min(len(changed), 4000)))
        changed[place : place + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    files.files[key] = bytes(changed)
    assert sources.outcome(LITDATA, files) in ("index", "walk", "parse", "read")


SHARED: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _shared(sources: Any) -> None:
    """Keeps sources for the property, which cannot use fixtures of a function."""
    if not SHARED:
        SHARED["sources"] = sources
        SHARED["all"], SHARED["tokens"] = sources.folder("litdata", "all"), sources.folder("litdata", "tokens")
        SHARED["made"] = chunk_files(sources, GOOD)
