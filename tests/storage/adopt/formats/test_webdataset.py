from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.adopt.formats.tar_indexes import read_places
from concurrent_loader.storage.adopt.formats.webdataset import WebDataset, split_name
from concurrent_loader.storage.adopt.protocol import BytesReader, ForeignColumn, FoundSample, SourceObject
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.foreign_codecs import foreign_codec
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind

GOLDEN = Path(__file__).parents[1] / "golden"
EXPECTED: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "webdataset.json").read_text())
JPEG = b"\xff\xd8\xff\xe0"
PNG = b"\x89PNG\r\n\x1a\n"


class Objects:
    def __init__(self, **objects: bytes) -> None:
        self.data = {key.replace("__", "."): data for key, data in objects.items()}

    def get(self, key: str, *, max_bytes: int) -> bytes | None:
        data = self.data.get(key)
        assert data is None or len(data) <= max_bytes
        return data


def entry(key: str, size: int = 1024) -> ObjectEntry:
    return ObjectEntry("memory://x", key, size, "1")


def source(**info: object) -> SourceObject:
    return SourceObject(entry=entry("shard.tar"), info=info)


def tar(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def npy(array: np.ndarray[Any, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def columns(data: bytes) -> dict[str, ForeignColumn]:
    return WebDataset().columns(source(), BytesReader(data, "shard.tar"))


def types(data: bytes) -> dict[str, str]:
    return {name: column.type + f" {column.encoding}".rstrip() for name, column in columns(data).items()}


def walk(data: bytes, wanted: Mapping[str, str] | None = None, **info: object) -> list[FoundSample]:
    chosen = columns(data) if wanted is None else {name: ForeignColumn(type=type_) for name, type_ in wanted.items()}
    return list(WebDataset().walk(source(**info), BytesReader(data, "shard.tar"), chosen))


def fields(data: bytes, sample: FoundSample) -> dict[str, bytes]:
    return {name: data[place.start : place.end] for name, place in sample.values.items() if name != "__key__"}


# -- the same as webdataset --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPECTED)
def test_samples_are_those_of_webdataset(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    end = 0
    samples = walk(data, {"__key__": "str"})
    for sample, expected in zip(samples, EXPECTED[name], strict=True):
        assert sample.name == sample.values["__key__"] == expected["key"]
        assert {field: value.hex() for field, value in fields(data, sample).items()} == expected["fields"]
        for place in sample.values.values():
            assert not isinstance(place, ByteRange) or sample.start < place.start <= place.end <= sample.end
        assert end <= sample.start < sample.end <= len(data)
        end = sample.end


@pytest.mark.parametrize("name", [name for name in EXPECTED if "tar" in name.removesuffix(".tar") and "us" not in name])
def test_values_are_those_of_webdataset(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    found = columns(data)
    compared = set()
    for sample, expected in zip(walk(data), EXPECTED[name], strict=True):
        for field, value in expected["decoded"].items():
            column, place = found[field], sample.values[field]
            raw = memoryview(data)[place.start : place.end]
            if Column(field, column.type).kind is ColumnKind.PAYLOAD:
                decoded = foreign_codec(column.encoding, column.type).decode(raw)
            else:
                decoded = WebDataset().parse(field, column.type, raw)
            if isinstance(decoded, np.ndarray):
                decoded = [str(decoded.dtype), decoded.tolist()]
            assert decoded == value
            compared.add(field)
    assert compared >= {"cls", "txt"}


def test_columns_of_the_file_that_tar_writer_wrote() -> None:
    assert types((GOLDEN / "tarwriter.tar").read_bytes()) == {
        "__key__": "str", "bin": "bytes", "cls": "int64", "id": "str", "jpg": "jpeg", "json": "json",
        "npy": "float32[3]", "seg.png": "png", "tokens.npy": "int32[...] npy", "txt": "str",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("dir.x/a.seg.JPG", ("dir.x/a", "seg.jpg")),
        ("a.b/.c.jpg", None),
        ("dir/.c.jpg", ("dir/", "c.jpg")),
        (".jpg", None),
        ("dir/a", None),
        ("dir.x/a", None),
        ("a.", ("a", "")),
        ("__meta__/a.jpg", None),
        ("__x__", None),
        ("__x__.jpg", ("__x__", "jpg")),
        ("dir/__x__/a.jpg", ("dir/__x__/a", "jpg")),
        ("a\nb/c.jpg", ("a\nb/c", "jpg")),
        ("a.x\n/b.jpg", None),
        ("İ.İ", ("İ", "i̇")),
    ],
)
def test_names_are_split_as_webdataset_does(name: str, expected: tuple[str, str] | None) -> None:
    assert split_name(name) == expected


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        ("jpg", [JPEG, JPEG + b"x"], "jpeg"),
        ("jpeg", [JPEG], "jpeg"),
        ("jpg", [PNG], "png"),
        ("jpg", [JPEG, PNG], "image"),
        ("png", [PNG, b""], "bytes"),
        ("webp", [b"RIFF    WEBP"], "webp"),
        ("gif", [b"GIF89a"], "gif"),
        ("avif", [b"    ftypavif"], "avif"),
        ("jpg", [b"MSCI-LIC" + bytes(8)], "bytes"),
        ("cls", [b"1", b" -2\n"], "int64"),
        ("cls2", [b"1", b"cat"], "str"),
        ("index", [b"\xff"], "bytes"),
        ("index", [b"9" * 30], "str"),
        ("inx", [b"7"], "int64"),
        ("id", [b"7"], "str"),
        ("txt", ["ü".encode()], "str"),
        ("text", [b"\xe9"], "bytes"),
        ("transcript", [b"a" * ((1 << 20) + 1)], "bytes"),
        ("json", [b'{"a": [1, 2.5, null]}\n', b"3"], "json"),
        ("jsn", [b"{}", b"{"], "bytes"),
        ("json", [b"NaN"], "bytes"),
        ("json", [b"[" * 300 + b"]" * 300], "bytes"),
        ("pyd", [b"\x80\x04."], "bytes"),
        ("mp4", [b""], "bytes"),
        ("npy", [npy(np.zeros((2, 3), np.uint8))], "uint8[2,3]"),
        ("npy", [npy(np.zeros((20, 30), "<f8"))], "float64[20,30] npy"),
        ("npy", [npy(np.zeros(3, ">i2")), npy(np.zeros(4, "<i2"))], "int16[...] npy"),
        ("npy", [npy(np.zeros(()))], "float64[...] npy"),
        ("npy", [npy(np.zeros(0, bool))], "bool[...] npy"),
        ("npy", [npy(np.zeros(3, np.int8)), npy(np.zeros(3, np.int16))], "bytes"),
        ("npy", [npy(np.zeros(3, complex))], "bytes"),
        ("npy", [npy(np.array([{}]), allow_pickle=True)], "bytes"),
        ("npy", [b"\x93NUMPY"], "bytes"),
    ],
)
def test_types_follow_from_names_and_values(field: str, values: list[bytes], expected: str) -> None:
    data = tar(*((f"{at}.x.{field}", value) for at, value in enumerate(values)))
    assert types(data) == {"__key__": "str", f"x.{field}": expected}


def test_columns_come_from_the_first_samples_only() -> None:
    data = tar(*((f"{at:03}.{'a' if at < 256 else 'b'}", b"") for at in range(300)))
    assert list(columns(data)) == ["__key__", "a"]


def test_fields_of_any_of_the_first_samples_become_columns() -> None:
    assert list(columns(tar(("1.a", b""), ("2.b", b""), ("2.ü", b""), ("3.__key__", b"")))) == ["__key__", "a", "b"]


def test_too_many_fields_name_the_rule_of_the_first_dot() -> None:
    data = tar(*((f"img_0.{at}.jpg", JPEG) for at in range(256)))
    with pytest.raises(FormatError, match="first dot"):
        columns(data)


@pytest.mark.parametrize("data", [tar(), tar(("README", b""), ("__meta__/a.b", b"")), tar(("a.ü", b""))])
def test_a_tar_file_without_samples(data: bytes) -> None:
    with pytest.raises(FormatError, match="no samples"):
        columns(data)


# -- samples -----------------------------------------------------------------------------------------------------------


def test_ranges_of_a_sample() -> None:
    data = tar(("1.jpg", JPEG), ("1.cls", b"1"), ("README", b""), ("2.jpg", JPEG * 200), ("2.cls", b"22"))
    first, second = walk(data)
    assert first == FoundSample(
        "1", 0, 2048, {"__key__": "1", "jpg": ByteRange(512, 516), "cls": ByteRange(1536, 1537)}
    )
    assert (second.start, second.end) == (2560, 2560 + 1536 + 1024)


def test_fields_that_are_no_columns_are_yielded_too() -> None:
    (sample,) = walk(tar(("1.a", b""), ("1.b", b"")), {"a": "bytes"})
    assert list(sample.values) == ["__key__", "a", "b"]


def test_keys_of_two_tar_files_may_be_the_same_and_a_key_may_have_any_letters() -> None:
    data = tar(("\udcff.a", b""))
    assert [sample.name for sample in walk(data, {"a": "bytes"})] == ["\udcff"]
    with pytest.raises(FormatError, match=r"sample '\\xff': the key is not UTF-8.*--only"):
        walk(data, {"a": "bytes", "__key__": "str"})


@pytest.mark.parametrize(
    ("members", "message", "position"),
    [
        ([("1.a", b""), ("2.a", b""), ("1.b", b"")], "sample '1': the sample lacks the field 'b'.*--sort=name", 0),
        ([("1.a", b""), ("1.b", b""), ("2.a", b""), ("2.b", b""), ("1.c", b"")], "sample '1': the members", 2048),
        ([("1.a", b""), ("1.b", b""), ("1.A", b"")], "sample '1': two members are the field 'a'", 1024),
        ([("1.a", b""), ("1.b", b""), ("2.a", b"")], "sample '2': the sample lacks the field 'b'.*--only", 1024),
        ([("1.a", b""), ("1.b", b""), ("1.__key__", b"")], "sample '1': two members", 1024),
    ],
)
def test_members_that_form_no_samples(members: list[tuple[str, bytes]], message: str, position: int) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        walk(tar(*members), {"__key__": "str", "a": "bytes", "b": "bytes"})
    assert (caught.value.key, caught.value.start) == ("shard.tar", position)


def test_scattered_samples_are_found_even_if_they_are_complete() -> None:
    with pytest.raises(FormatError, match="sample '1': the members of the sample do not follow each other") as caught:
        walk(tar(("1.a", b""), ("2.a", b""), ("1.a", b"")), {"a": "bytes"})
    assert caught.value.start == 1024


def test_equal_hashes_of_different_keys_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concurrent_loader.storage.adopt.formats.webdataset._hash", lambda key: len(key))
    assert len(walk(tar(("1.a", b""), ("2.a", b""), ("3.a", b"")), {"a": "bytes"})) == 3


def test_an_image_of_another_format_names_its_sample() -> None:
    data = tar(("1.jpg", JPEG), ("2.jpg", PNG))
    with pytest.raises(
        FormatError, match=r"sample '2': the field 'jpg' is not an image of type jpeg.*--column jpg=image"
    ):
        walk(data, {"jpg": "jpeg"})
    assert len(walk(data, {"jpg": "image"})) == len(walk(data, {"jpg": "bytes"})) == 2


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "data", "expected"),
    [
        ("str", "größer\n".encode(), "größer\n"),
        ("json", b' {"a": 1}\n', {"a": 1}),
        ("int8", b" 7\n", 7),
        ("uint64", b"18446744073709551615", 2**64 - 1),
        ("float32", b"1e3", 1000.0),
        ("bool", b"True\n", True),
        ("bool", b"0", False),
        ("float32[2]", b"[1, 2.5]", [1, 2.5]),
        ("int16[2]", npy(np.array([3, 4], ">i2")), [3, 4]),
    ],
)
def test_values_from_texts(type_: str, data: bytes, expected: object) -> None:
    value = WebDataset().parse("x", type_, memoryview(data))
    assert (value.tolist() if isinstance(value, np.ndarray) else value) == expected
    Column("x", type_).encode(value)


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("str", b"\xff"),
        ("json", b"{"),
        ("json", b"\xff"),
        ("json", b"[" * 100_000),
        ("int64", b"1.5"),
        ("int64", b""),
        ("int64", b"1" * 5000),
        ("int64", b"9" * 60),
        ("float32", b"x"),
        ("float32", b"1" * 100),
        ("bool", b"yes"),
        ("bool", b"2" * 100),
        ("float32[2]", b"{"),
        ("float32[2]", b"[" * 100_000),
        ("float32[2]", npy(np.zeros(3, np.float32))),
        ("float32[2]", npy(np.zeros(2))),
    ],
)
def test_values_that_do_not_fit(type_: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        WebDataset().parse("x", type_, memoryview(data))


# -- sources and indexes -----------------------------------------------------------------------------------------------


def test_objects_are_the_tar_files() -> None:
    found = WebDataset().objects([entry("a.tar"), entry("b/c.tar"), entry("readme.md"), entry("x.json")], Objects())
    assert [(each.entry.key, each.info) for each in found] == [("a.tar", {}), ("b/c.tar", {})]


@pytest.mark.parametrize("key", ["a.tar.gz", "b/A.TGZ", "a.tar.zst", "a.tar.bz2", "a.tar.xz"])
def test_compressed_tar_files_are_refused_by_name(key: str) -> None:
    with pytest.raises(FormatError, match="ingest tar") as caught:
        WebDataset().objects([entry("a.tar"), entry(key)], Objects())
    assert caught.value.key == key


def test_a_source_without_tar_files() -> None:
    with pytest.raises(FormatError, match=r"no object whose name ends in \.tar"):
        WebDataset().objects([entry("a.parquet")], Objects())


def test_indexes_of_energon_state_the_number_of_samples() -> None:
    folder = GOLDEN / "energon"
    keys = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    small = Objects()
    small.data[".nv-meta/.info.json"] = (folder / ".nv-meta/.info.json").read_bytes()
    found = WebDataset().objects([entry(key, (folder / key).stat().st_size) for key in keys], small)
    assert [each.info["num_samples"] for each in found] == [2, 3]
    for each in found:
        data = (folder / each.entry.key).read_bytes()
        assert len(walk(data, **each.info)) == each.info["num_samples"]
        with pytest.raises(FormatError, match=r"index \.nv-meta/\.info\.json states another number.*create it again"):
            walk(data, num_samples=9, index=each.info["index"])


def test_an_index_of_dali_states_the_number_of_samples() -> None:
    entries = [entry("a.idx", 40), entry("a.tar"), entry("b.idx", 9 << 20), entry("b.tar")]
    found = WebDataset().objects(entries, Objects(a__idx=b"v1.2 2\njpg 512 4 1.jpg\njpg 1536 4 2.jpg\n"))
    assert [(each.info.get("num_samples"), each.info["index"]) for each in found] == [(2, "a.idx"), (None, "b.idx")]
    assert len(walk(tar(("1.jpg", JPEG), ("2.jpg", JPEG)), **found[0].info)) == 2
    assert len(walk(tar(("1.jpg", JPEG), ("__meta__/2.jpg", JPEG)), **found[0].info)) == 1  # a sample to DALI
    for lying in (tar(("1.jpg", JPEG)), tar(("1.jpg", JPEG), ("2.jpg", JPEG), ("3.jpg", JPEG))):
        with pytest.raises(FormatError, match=r"index a\.idx states another number"):
            walk(lying, **found[0].info)


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b"v1.1 2\njpg 512 4 cls 1536 1\njpg 2560 4\n", [0, 1024, 2048]),
        (b"v1.2 1\njpg 512 4 a b.jpg seg.png 1536 1 a b.seg.png\n", [0, 1024]),
        (b"v1.2 1\njpg 512 4 a.png\n", None),
        (b"v1.2 1\njpg 512\n", None),
        (b"another program's", None),
        (b"", None),
    ],
)
def test_the_places_in_an_index_of_dali(data: bytes, headers: list[int] | None) -> None:
    places = read_places({"places": "a.idx", "read_index": lambda: data})
    assert (None if places is None else places.headers) == headers


def test_a_file_that_only_has_the_name_of_an_index_is_ignored() -> None:
    (found,) = WebDataset().objects([entry("a.idx", 4), entry("a.tar")], Objects(a__idx=b"none"))
    assert found.info == {}


@pytest.mark.parametrize("data", [b"{", b'{"shard_counts": []}', b'{"shard_counts": {"a.tar": "1"}}', b"\xff"])
def test_damaged_indexes(data: bytes) -> None:
    small = Objects()
    small.data[".nv-meta/.info.json"] = data
    with pytest.raises(FormatError, match="Energon is damaged"):
        WebDataset().objects([entry(".nv-meta/.info.json"), entry("a.tar")], small)


@pytest.mark.parametrize("size", [0, 7, 17])
def test_indexes_of_impossible_sizes(size: int) -> None:
    with pytest.raises(FormatError, match="Energon is damaged"):
        WebDataset().objects([entry("a.tar"), entry("a.tar.idx", size)], Objects())


def test_indexes_that_contradict_each_other() -> None:
    small = Objects()
    small.data[".nv-meta/.info.json"] = b'{"shard_counts": {"a.tar": 3}}'
    entries = [entry(".nv-meta/.info.json"), entry("a.tar"), entry("a.tar.idx", 24)]
    with pytest.raises(FormatError, match="contradict each other"):
        WebDataset().objects(entries, small)


# -- damage ------------------------------------------------------------------------------------------------------------

WHOLE = tar(
    ("__meta__.json", b"{}"), ("a/1.jpg", JPEG * 200), ("a/1.cls", b"1"), ("a/2.jpg", JPEG), ("a/2.cls", b"22"),
)  # fmt: skip


@given(data=st.data())
def test_damaged_bytes_give_format_errors(data: st.DataObject) -> None:
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 7 * 512))
        damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    reader = BytesReader(bytes(damaged))
    format_ = WebDataset()
    try:
        found = format_.columns(source(), reader)
        for sample in format_.walk(source(), reader, found):
            assert found.keys() <= sample.values.keys()
            for place in sample.values.values():
                assert not isinstance(place, ByteRange) or sample.start < place.start <= place.end <= sample.end
    except FormatError:
        return
