from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import CorruptData, FormatError, SchemaError
from concurrent_loader.storage.shards.format.builder import ShardBuilder
from concurrent_loader.storage.shards.format.index import ShardIndex, verify_shard
from concurrent_loader.storage.shards.format.nulls import joined, masked, null_rows, plain_values, with_none
from concurrent_loader.storage.shards.format.schema import Column, Schema

TYPES = {"image": "jpeg?", "label": "int16?", "box": "float32[2]?", "name": "str?", "points": "int8[...]?", "n": "int8"}
VALUES = {"image": b"\xff\xd8\xff", "label": 7, "box": [1.0, 2.0], "name": "a", "points": [[1], [2]]}


def build(samples: list[dict[str, Any]], types: dict[str, str] = TYPES) -> bytes:
    builder = ShardBuilder(Schema.parse(types))
    for number, sample in enumerate(samples):
        builder.add({**sample, "n": number})
    return builder.finish().tobytes()


def read(data: bytes) -> list[dict[str, Any]]:
    index = verify_shard(data)
    payload = {column.name for column in index.schema.payload}
    rows = []
    for row in range(index.num_samples):
        sample: dict[str, Any] = {}
        for name in index.schema.names:
            if name in payload:
                place = index.payload_range(row, name)
                value = index.decode_value(name, row, data[place.start : place.end])
            else:
                value = index.value(name, row)
            sample[name] = value.tolist() if isinstance(value, np.ndarray) else value
        rows.append(sample)
    return rows


@given(st.lists(st.fixed_dictionaries({name: st.sampled_from([value, None]) for name, value in VALUES.items()})))
def test_nulls_come_back(samples: list[dict[str, Any]]) -> None:
    data = build(samples)
    assert read(data) == [{**sample, "n": number} for number, sample in enumerate(samples)]
    index = verify_shard(data)
    for name in VALUES:
        nulls = [sample[name] is None for sample in samples]
        valid = index.valid(name)
        assert (valid is None) == (not any(nulls))
        assert index.schema[name].optional == any(nulls)
        if valid is not None:
            assert valid.tolist() == [not null for null in nulls]
    label = index.column("label")
    assert plain_values(label) == [sample["label"] for sample in samples]
    assert index.values("name", np.arange(len(samples))) == [sample["name"] for sample in samples]


def test_a_shard_without_nulls_has_the_bytes_of_plain_types() -> None:
    plain = {name: type_.removesuffix("?") for name, type_ in TYPES.items()}
    assert build([VALUES] * 9) == build([VALUES] * 9, plain)
    assert build([]) == build([], plain)


def test_types() -> None:
    column = Column("a", "float32[ 2 ]?")
    assert (column.type, column.base_type, column.optional) == ("float32[2]?", "float32[2]", True)
    assert not Column("a", "int64").optional
    for wrong in ("int64??", "?", "int64? ?", "nothing?"):
        with pytest.raises(SchemaError, match="unknown column type"):
            Column("a", wrong)
    with pytest.raises(SchemaError, match="not optional"):
        Column("a", "bytes?", "npy")


@pytest.mark.parametrize("type_", ["int64", "str", "jpeg", "bool", "float32[2]", "int8[...]", "bytes"])
def test_none_needs_an_optional_column(type_: str) -> None:
    with pytest.raises(SchemaError, match="only an optional column"):
        Column("a", type_).encode(None)
    assert Column("a", "json").encode(None) == b"null"
    assert Column("a", "json?").encode(None) == b""


def test_arrays_with_a_mask() -> None:
    builder = ShardBuilder(Schema.parse({"x": "int32?", "y": "float32[2]?"}))
    x = np.ma.array(np.arange(3, dtype=np.int32), mask=[True, False, False])
    y = np.ma.array(np.ones((3, 2), np.float32), mask=[[False] * 2, [True] * 2, [False] * 2])
    for _ in range(2):
        builder.extend_fixed({"x": x, "y": y})
    assert plain_values(builder.fixed_values("x")) == [None, 1, 2] * 2
    index = verify_shard(builder.finish().tobytes())
    assert plain_values(index.column("x")) == [None, 1, 2] * 2
    assert [None if each is None else each.tolist() for each in plain_values(index.column("y"))] == [
        [1, 1], None, [1, 1],
    ] * 2  # fmt: skip
    y[0, 0] = np.ma.masked
    with pytest.raises(SchemaError, match="only whole values"):
        builder.extend_fixed({"x": x, "y": y})
    with pytest.raises(SchemaError, match="only whole values"):
        ShardBuilder(Schema.parse({"x": "int32"})).extend_fixed({"x": x})


def test_arrays_are_joined_with_their_nulls() -> None:
    some = masked(np.arange(4.0).reshape(2, 2), np.array([False, True]))
    whole = joined([np.zeros((1, 2)), some], optional=False)
    assert null_rows(whole).tolist() == [False, True, False]
    assert np.isnan(whole.filled()[1]).all()
    assert with_none(whole)[1] is None
    assert isinstance(joined([np.zeros(2)], optional=True), np.ma.MaskedArray)
    assert type(joined([np.zeros(2), np.ones(1)], optional=False)) is np.ndarray
    assert masked(np.array([True]), np.array([False])).filled().tolist() == [False]
    assert masked(np.array([5]), np.array([False])).filled().tolist() == [0]


def changed(change: Callable[[dict[str, Any], bytearray], None], *, version: int = 3) -> bytes:
    """Returns the tail of a shard of 9 samples with one null, after a change of its descriptor and bytes."""
    builder = ShardBuilder(Schema.parse({"x": "int8?", "s": "str?", "p": "bytes?"}))
    for number in range(9):
        builder.add(dict.fromkeys("xsp") if number == 4 else {"x": 1, "s": "a", "p": b"a"})
    data = bytearray(builder.finish().tobytes())
    footer = data[-64:]
    start, length = (int.from_bytes(footer[at : at + size], "little") for at, size in ((8, 8), (16, 4)))
    descriptor = json.loads(data[start : start + length])
    change(descriptor, data)
    for block in descriptor["blocks"]:
        end = block["start"] + (block["length"] + 7) // 8 * 8
        block["digest"] = f"{xxhash.xxh3_64_intdigest(bytes(data[block['start'] : end])):016x}"
    text = json.dumps(descriptor, separators=(",", ":")).encode()
    padded = text + bytes(-len(text) % 8)
    footer[16:20] = len(text).to_bytes(4, "little")
    footer[20:22] = version.to_bytes(2, "little")
    footer[24:32] = xxhash.xxh3_64_intdigest(padded).to_bytes(8, "little")
    footer[40:48] = (start + len(padded) + 64).to_bytes(8, "little")
    footer[48:56] = xxhash.xxh3_64_intdigest(bytes(footer[:48])).to_bytes(8, "little")
    return bytes(data[:start]) + padded + bytes(footer)


def block(descriptor: dict[str, Any], kind: str, column: str) -> int:
    return next(int(at["start"]) for at in descriptor["blocks"] if (at["kind"], at["column"]) == (kind, column))


def set_byte(kind: str, column: str, offset: int, value: int) -> Callable[[dict[str, Any], bytearray], None]:
    def change(descriptor: dict[str, Any], data: bytearray) -> None:
        data[block(descriptor, kind, column) + offset] = value

    return change


HOSTILE: dict[str, tuple[Callable[[dict[str, Any], bytearray], None], str]] = {
    "no null": (set_byte("validity", "x", 0, 255), "must have a null"),
    "bits after the last": (set_byte("validity", "s", 1, 3), "zeros after the last"),
    "a null number": (set_byte("fixed", "x", 4, 1), "not stored as zeros"),
    "a null text": (set_byte("validity", "s", 0, 0b11101110), "a null has bytes"),
    "a null payload": (set_byte("validity", "p", 0, 0b11101110), "a null has bytes"),
    "no bitmap": (lambda descriptor, _: descriptor["blocks"].pop(), "fill the tail"),
    "no optional type": (lambda descriptor, _: descriptor["columns"][0].update(type="int8"), "unknown kind"),
    "two columns": (lambda descriptor, _: descriptor["blocks"][-1].update(column="s"), "twice"),
    "too short": (lambda descriptor, _: descriptor["blocks"][-1].update(length=3), "length of its samples"),
    "another codec": (lambda descriptor, _: descriptor["blocks"][-1].update(codec="zstd"), "codec"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str) -> None:
    change, message = HOSTILE[name]
    with pytest.raises(CorruptData, match=message):
        verify_shard(changed(change))


def test_versions() -> None:
    assert verify_shard(changed(lambda *_: None)).num_samples == 9
    for version in (1, 2):
        with pytest.raises(FormatError):
            verify_shard(changed(lambda *_: None, version=version))


def test_a_truncated_shard_is_refused() -> None:
    data = build([VALUES, dict.fromkeys(VALUES)])
    index = verify_shard(data)
    for end in range(index.tail_start, len(data)):
        with pytest.raises(CorruptData):
            ShardIndex.parse(data[index.tail_start : end], tail_start=index.tail_start, size=end)
