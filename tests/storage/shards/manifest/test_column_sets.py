"""Column sets in the manifest: the file, what it refuses, and the changes of columns as pure functions."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.shards.manifest.column_changes import with_columns, with_names, without_columns
from concurrent_loader.storage.shards.manifest.commit_tokens import with_token
from concurrent_loader.storage.shards.manifest.manifest import (
    BundleEntry,
    ColumnPlace,
    ColumnSet,
    Manifest,
    ShardEntry,
    bundle_key,
    shard_key,
)
from concurrent_loader.storage.shards.manifest.manifest_file import decode, encode

GOLDEN = Path(__file__).parents[1] / "golden" / "manifest_column_sets.clm"


def a_shard(name: str, num_samples: int = 10) -> ShardEntry:
    digest = xxhash.xxh3_128_hexdigest(name.encode())
    return ShardEntry(
        key=shard_key(digest), size=4096, num_samples=num_samples, tail_start=1024, digest=digest, chunk_digests=(7,),
        payload_bytes=900,
    )  # fmt: skip


def a_bundle(name: str, num_samples: int) -> BundleEntry:
    digest = xxhash.xxh3_128_hexdigest(name.encode())
    return BundleEntry(
        key=bundle_key(digest), size=1024, tail_start=32, digest=digest, chunk_digests=(8,), first_sample=0,
        num_samples=num_samples,
    )  # fmt: skip


def a_set(name: str) -> ColumnSet:
    return ColumnSet(shards=(a_shard(f"{name}0"), a_shard(f"{name}1", 7)), bundles=(a_bundle(name, 17),))


def plain() -> Manifest:
    return Manifest(
        snapshot=1,
        schema={"image": "jpeg", "label": "int64"},
        shards=(a_shard("main 0"), a_shard("main 1", 7)),
        bundles=(a_bundle("main", 17),),
        statistics={"label": {"max": 3, "min": 1}},
        metadata={"classes": {"label": ["cat"]}, "encoded": {"image": {"ratio": 2}}},
    )


def changed() -> Manifest:
    manifest = with_names(plain(), {"label": "class"})
    manifest = with_columns(manifest, {"label": "int32", "caption": "str"}, a_set("one"), {"label": {"max": 4}})
    manifest = with_columns(manifest, {"blob": "bytes"}, a_set("two"), {})
    return replace(manifest, metadata=with_token(manifest.metadata, "a job", manifest.snapshot))


def decoded_with(change: Any) -> Manifest:
    """Reads a manifest whose body was changed."""
    body = json.loads(encode(changed())[32:])
    change(body)
    data = json.dumps(body).encode()
    version = 3 if body.get("requires") else 1
    return decode(struct.pack("<8sIIQQ", b"CLMANIF\n", version, 0, len(data), xxhash.xxh3_64_intdigest(data)) + data)


def test_round_trip() -> None:
    again = decode(encode(changed()))
    assert again == changed()
    assert list(again.places.items()) == [
        ("image", ColumnPlace(0, "image")), ("class", ColumnPlace(0, "label")), ("label", ColumnPlace(1, "label")),
        ("caption", ColumnPlace(1, "caption")), ("blob", ColumnPlace(2, "blob")),
    ]  # fmt: skip
    assert json.loads(encode(changed())[32:])["requires"] == ["column-sets"]


def test_golden() -> None:
    if os.environ.get("WRITE_GOLDEN"):
        GOLDEN.write_bytes(encode(changed()))
    assert encode(changed()) == GOLDEN.read_bytes()
    assert decode(GOLDEN.read_bytes()) == changed()


def test_optional_columns_are_a_feature() -> None:
    manifest = replace(plain(), schema={**plain().schema, "label": "int64?"}, statistics={"label": {"num_null": 3}})
    data = encode(manifest)
    body = json.loads(data[32:])
    assert (data[8], body["requires"]) == (3, ["optional-columns"])
    assert decode(data) == manifest
    assert "requires" not in json.loads(encode(plain())[32:])
    del body["requires"]
    text = json.dumps(body).encode()
    header = struct.pack("<8sIIQQ", b"CLMANIF\n", 1, 0, len(text), xxhash.xxh3_64_intdigest(text))
    with pytest.raises(FormatError, match="requires"):
        decode(header + text)


def test_a_manifest_without_changes_of_columns_is_as_before() -> None:
    body = json.loads(encode(plain())[32:])
    assert not {"places", "column_sets", "requires"} & body.keys()
    assert plain().parts == (plain(),)


def test_every_key() -> None:
    manifest = changed()
    expected = [a_shard(f"{name}{n}").key for name in ("main ", "one", "two") for n in (0, 1)]
    expected += [a_bundle(name, 17).key for name in ("main", "one", "two")]
    assert sorted(manifest.referenced_keys()) == sorted(expected)
    dropped = without_columns(manifest, ["label", "caption"])
    assert not {each.key for each in a_set("one").shards} & set(dropped.referenced_keys())


def test_parts_have_the_names_in_the_files() -> None:
    assert [part.schema for part in changed().parts] == [
        {"image": "jpeg", "label": "int64"}, {"label": "int32", "caption": "str"}, {"blob": "bytes"},
    ]  # fmt: skip
    assert {part.num_samples for part in changed().parts} == {17}


HOSTILE: dict[str, Any] = {
    "a shard too few": lambda body: body["column_sets"][0]["shards"].pop(),
    "a shard with other samples": lambda body: body["column_sets"][1]["shards"][0].update(num_samples=9),
    "a shard with more samples than fit": lambda body: [
        each["shards"][0].update(num_samples=10**6) for each in (body, body["column_sets"][0], body["column_sets"][1])
    ],
    "a key outside": lambda body: body["column_sets"][0]["shards"][0].update(key="../x"),
    "a bundle's key outside": lambda body: body["column_sets"][0]["bundles"][0].update(key="shards/x"),
    "a bundle that is too long": lambda body: body["column_sets"][0]["bundles"][0].update(num_samples=18),
    "a missing set": lambda body: body["column_sets"].pop(),
    "a set without columns": lambda body: body["column_sets"].append(body["column_sets"][0]),
    "a place in no set": lambda body: body["places"][2].update(part=3),
    "a negative place": lambda body: body["places"][2].update(part=-1),
    "no column in the shards": lambda body: [
        place.update(part=1, name=f"x{n}") for n, place in enumerate(body["places"])
    ],
    "the same place twice": lambda body: body["places"][3].update(name="label"),
    "a name that is none": lambda body: body["places"][0].update(name="a/b"),
    "a place too few": lambda body: body["places"].pop(),
    "a place too many": lambda body: body["places"].append({"part": 0, "name": "x"}),
    "no places": lambda body: body.pop("places"),
    "sets of an old version": lambda body: body.pop("requires"),
    "an unknown field": lambda body: body["column_sets"][0].update(x=1),
    "a set that is no object": lambda body: body.update(column_sets=[[]]),
    "too many sets": lambda body: body.update(column_sets=body["column_sets"] * 200),
    "a feature that is not used": lambda body: [body.pop(name) for name in ("places", "column_sets")],
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str) -> None:
    with pytest.raises(FormatError):
        decoded_with(HOSTILE[name])


def test_a_body_that_is_not_changed_is_read() -> None:
    assert decoded_with(lambda body: None) == changed()


def test_renaming_moves_what_belongs_to_the_column() -> None:
    manifest = with_names(plain(), {"label": "image", "image": "label"})
    assert manifest.schema == {"label": "jpeg", "image": "int64"}
    assert manifest.statistics == {"image": {"max": 3, "min": 1}}
    assert manifest.metadata["classes"] == {"image": ["cat"]}
    assert manifest.metadata["encoded"] == {"label": {"ratio": 2}}
    assert (manifest.snapshot, manifest.parent) == (2, plain().digest)
    assert manifest.fingerprint == plain().fingerprint


def test_other_samples_are_another_fingerprint() -> None:
    manifest = changed()
    assert manifest.fingerprint == plain().fingerprint
    assert replace(manifest, snapshot=9).fingerprint != plain().fingerprint


def test_dropping_the_last_column_of_a_set_drops_the_set() -> None:
    manifest = without_columns(without_columns(changed(), ["label"]), ["caption"])
    assert manifest.column_sets == (a_set("two"),)
    assert manifest.places["blob"] == ColumnPlace(1, "blob")
    assert decode(encode(manifest)) == manifest


def test_names_that_are_wrong() -> None:
    for change in (
        lambda: with_names(plain(), {}),
        lambda: with_names(plain(), {"x": "y"}),
        lambda: with_names(plain(), {"label": "image"}),
        lambda: with_names(plain(), {"label": "x", "image": "x"}),
        lambda: with_names(plain(), {"label": "a b"}),
        lambda: without_columns(plain(), ["image", "label"]),
        lambda: without_columns(plain(), []),
        lambda: with_columns(plain(), {"label": "str"}, a_set("x"), {}),
        lambda: with_columns(plain(), {f"x{n}": "str" for n in range(255)}, a_set("x"), {}),
    ):
        with pytest.raises(SchemaError):
            change()


NAMES = st.sampled_from(["image", "label", "a", "b", "c", "d"])
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(NAMES, min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("drop"), st.lists(NAMES, min_size=1, max_size=2, unique=True)),
        st.tuples(st.just("rename"), st.dictionaries(NAMES, NAMES, min_size=1, max_size=3)),
    ),
    max_size=8,
)


@given(CHANGES)
def test_any_changes(changes: list[tuple[str, Any]]) -> None:
    """Against a model: an ordered mapping of names to what was stored."""
    manifest, model = plain(), {"image": "main image", "label": "main label"}
    for number, (kind, names) in enumerate(changes):
        try:
            if kind == "add":
                made = with_columns(manifest, dict.fromkeys(names, "str"), a_set(str(number)), {})
                model = {**model, **{name: f"{number} {name}" for name in names}}
            elif kind == "drop":
                made = without_columns(manifest, names)
                model = {name: value for name, value in model.items() if name not in names}
            else:
                made = with_names(manifest, names)
                model = {names.get(name, name): value for name, value in model.items()}
        except SchemaError:
            continue
        assert made.parent == manifest.digest
        manifest = decode(encode(made))
        assert manifest == made
    assert list(manifest.schema) == list(model)
    assert manifest.fingerprint == plain().fingerprint
    sets = [plain(), *manifest.column_sets]
    for name, stored in model.items():
        place = manifest.place_of(name)
        origin, _, own = stored.partition(" ")
        assert place.name == own
        assert sets[place.part].shards[0].key == a_shard("main 0" if origin == "main" else f"{origin}0").key
