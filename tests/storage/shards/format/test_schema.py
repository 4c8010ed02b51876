from __future__ import annotations

import pickle

import numpy as np
import pytest

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind, Schema


@pytest.mark.parametrize(
    ("type_", "kind", "dtype", "shape"),
    [
        ("bytes", ColumnKind.PAYLOAD, None, None),
        ("jpeg", ColumnKind.PAYLOAD, None, None),
        ("image", ColumnKind.PAYLOAD, None, None),
        ("str", ColumnKind.SMALL, None, None),
        ("json", ColumnKind.SMALL, None, None),
        ("bool", ColumnKind.FIXED, "?", ()),
        ("int64", ColumnKind.FIXED, "<i8", ()),
        ("float16", ColumnKind.FIXED, "<f2", ()),
        ("float32[3,4]", ColumnKind.FIXED, "<f4", (3, 4)),
        ("float32[256]", ColumnKind.FIXED, "<f4", (256,)),
        ("float32[257]", ColumnKind.PAYLOAD, "<f4", (257,)),
        ("uint8[...]", ColumnKind.PAYLOAD, "u1", None),
    ],
)
def test_types(type_: str, kind: ColumnKind, dtype: str | None, shape: tuple[int, ...] | None) -> None:
    column = Column("x", type_)
    assert (column.type, column.kind, column.shape) == (type_, kind, shape)
    assert column.dtype == (None if dtype is None else np.dtype(dtype))


@pytest.mark.parametrize(
    ("written", "canonical"),
    [(" int64 ", "int64"), ("float32[3, 4]", "float32[3,4]"), ("float32[03]", "float32[3]"), ("int8[ 2 ]", "int8[2]")],
)
def test_types_become_canonical(written: str, canonical: str) -> None:
    assert Column("x", written) == Column("x", canonical)
    assert Column("x", written).type == canonical


@pytest.mark.parametrize(
    "type_",
    [
        "",
        "int",
        "int128",
        "float",
        "object",
        "JPEG",
        "jpeg[3]",
        "str[2]",
        "float32[]",
        "float32[0]",
        "float32[-1]",
        "float32[1,,2]",
        "float32[1,]",
        "float32[3 4]",
        "float32[....]",
        "float32[3",
        "float32[3]x",
        "float32[" + ",".join(["1"] * 33) + "]",
        "float32[" + "9" * 5000 + "]",
        "float32[1099511627776]",
        "float32[\u0663]",
    ],
)
def test_what_is_no_type(type_: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Column("x", type_)
    assert caught.value.column == "x"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "a\n", "x" * 65, "\0"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(SchemaError):
        Column(name, "int8")


def test_names_may_have_dots_and_dashes() -> None:
    assert Schema.parse({"a.b-c_D9": "int8", "x" * 64: "int8"}).names == ("a.b-c_D9", "x" * 64)


def test_a_schema_keeps_order_and_sorts_by_kind() -> None:
    types = {"z": "int8", "image": "jpeg", "a": "str", "mask": "bool[...]", "m": "json", "b": "bool"}
    schema = Schema.parse(types)
    assert list(schema.to_dict().items()) == list(types.items())
    assert [column.name for column in schema.payload] == ["image", "mask"]
    assert [column.name for column in schema.fixed] == ["z", "b"]
    assert [column.name for column in schema.small] == ["a", "m"]
    assert schema["mask"].type == "bool[...]"
    assert ("a" in schema, "q" in schema, len(schema)) == (True, False, 6)
    with pytest.raises(SchemaError, match="no such column"):
        schema["q"]


def test_a_schema_has_1_to_256_columns_of_different_names() -> None:
    assert len(Schema.parse({f"c{i}": "int8" for i in range(256)})) == 256
    for columns in ({}, {f"c{i}": "int8" for i in range(257)}):
        with pytest.raises(SchemaError):
            Schema.parse(columns)
    with pytest.raises(SchemaError, match="same name"):
        Schema((Column("a", "int8"), Column("a", "str")))


def test_schemas_cross_process_borders_and_are_hashable() -> None:
    schema = Schema.parse({"image": "jpeg", "x": "float32[2,2]", "n": "int8"})
    copy = pickle.loads(pickle.dumps(schema))
    assert copy == schema
    assert hash(copy) == hash(schema)
    assert copy["n"].encode(3) == b"\x03"


def test_sample_keys_are_those_of_the_schema() -> None:
    schema = Schema.parse({"a": "int8", "b": "int8"})
    schema.check_sample_keys({"b": 1, "a": 2})
    with pytest.raises(SchemaError, match="missing b"):
        schema.check_sample_keys({"a": 1})
    with pytest.raises(SchemaError, match="not in the schema: c"):
        schema.check_sample_keys({"a": 1, "b": 1, "c": 1})
