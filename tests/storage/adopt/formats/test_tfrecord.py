"""TFRecord: golden files of TensorFlow equal what its own reader returns; hostile files are errors."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.adopt.formats import tfrecord
from concurrent_loader.storage.adopt.formats.tfrecord import TfRecordFormat
from concurrent_loader.storage.errors import ConfigurationError, FormatError
from concurrent_loader.storage.shards.format.foreign_codecs import split_list

TFRECORD = TfRecordFormat()


# -- golden files ------------------------------------------------------------------------------------------------------


def test_every_feature_is_read_like_the_peer_reads_it(sources: Any) -> None:
    read = sources.read(TFRECORD, sources.folder("tfrecord", "all"))
    expected = sources.expected("tfrecord", "all", "expected.json")
    assert len(read.samples) == len(expected) == 5
    for ours, features in zip(read.samples, expected, strict=True):
        theirs = {name.replace("/", "."): value for name, value in features.items()}
        optional = {"sometimes", "rare"}
        assert ours.keys() - optional == theirs.keys() - optional - {"never", "late"}  # "late" is in no record at first
        for column, found in ours.items():
            value = theirs.get(column, [])
            if column == "frames":
                assert [bytes(part) for part in split_list("tfrecord/bytes", found)] == value
            elif column == "sometimes":
                assert found == b"".join(value)
            elif isinstance(value, np.ndarray) or column == "rare":
                np.testing.assert_array_equal(np.atleast_1d(found), value)
                assert not isinstance(found, np.ndarray) or column == "rare" or found.dtype == value.dtype
            elif read.columns[column].type == "json":
                assert [text.encode() for text in found] == value
            else:
                assert [found.encode() if isinstance(found, str) else found] == value, column


def test_the_columns_are_derived(sources: Any) -> None:
    columns = sources.read(TFRECORD, sources.folder("tfrecord", "all")).columns
    assert {name: (column.type, column.encoding) for name, column in columns.items()} == {
        "box": ("float32[4]", ""),
        "boxes": ("float32[...]", "tfrecord/floats"),
        "embedding": ("float32[...]", "tfrecord/floats"),
        "flag": ("int64", ""),
        "frames": ("bytes", "tfrecord/bytes"),
        "ids": ("int64[...]", "tfrecord/ints"),
        "image.class.label": ("int64", ""),
        "image.class.text": ("str", ""),
        "image.encoded": ("jpeg", ""),
        "image.format": ("str", ""),
        "image.png": ("png", ""),
        "mask": ("bytes", ""),
        "names": ("json", ""),
        "pair": ("int64[2]", ""),
        "rare": ("float32[...]", "tfrecord/floats"),
        "raw": ("bytes", ""),
        "score": ("float32", ""),
        "sometimes": ("bytes", ""),
        "tokens": ("int64[...]", "tfrecord/ints"),
    }


@pytest.mark.parametrize(
    ("column", "type_", "values"),
    [
        ("flag", "bool", [False, True, False, True, False]),
        ("flag", "uint8", [0, 1, 0, 1, 0]),
        ("flag", "int64[...]", [[0], [1], [0], [1], [0]]),
        ("pair", "int16[1,2]", [[[i, -i]] for i in range(5)]),
        ("pair", "float64[2]", [[i, -i] for i in range(5)]),
        ("image.format", "bytes", [b"JPEG"] * 5),
        ("mask", "uint8[...]", [[0] * n for n in range(5, 10)]),
    ],
)
def test_a_user_may_ask_for_another_type(sources: Any, column: str, type_: str, values: list[Any]) -> None:
    read = sources.read(TFRECORD, sources.folder("tfrecord", "all"), asked={column: type_})
    found = [sample[column] for sample in read.samples]
    assert [value.tolist() if isinstance(value, np.ndarray) else value for value in found] == values


def test_arrays_in_bytes_may_be_read_as_arrays(sources: Any) -> None:
    read = sources.read(TFRECORD, sources.folder("tfrecord", "all"), asked={"raw": "float64[...]"})
    for ours, theirs in zip(read.samples, sources.expected("tfrecord", "all", "expected.json"), strict=True):
        assert ours["raw"].tobytes() == theirs["raw"][0]


def test_packed_floats_of_one_length_may_be_read_as_stored(sources: Any) -> None:
    read = sources.read(TFRECORD, sources.folder("tfrecord", "all"), asked={"embedding": "float32[30,10]"})
    for ours, theirs in zip(read.samples, sources.expected("tfrecord", "all", "expected.json"), strict=True):
        np.testing.assert_array_equal(ours["embedding"].reshape(-1), theirs["embedding"])


@pytest.mark.parametrize(
    ("column", "type_", "sample"),
    [("boxes", "float32[4]", 0), ("raw", "float64[400]", 0), ("tokens", "int64[300]", 0), ("tokens", "float32[...]", 0),
     ("pair", "str", 0), ("names", "str", 0), ("mask", "uint16[...]", 0),
     ("embedding", "float32[301]", 0), ("sometimes", "jpeg", 0), ("flag", "json", 0), ("box", "tfrecord", None)],
)  # fmt: skip
def test_a_type_that_features_do_not_have_names_the_sample(
    sources: Any, column: str, type_: str, sample: int | None
) -> None:
    with pytest.raises(FormatError) as caught:
        sources.read(TFRECORD, sources.folder("tfrecord", "all"), asked={column: type_})
    assert (caught.value.column, caught.value.sample) == (column, sample)


@pytest.mark.parametrize(
    ("case", "match"),
    [("gzip", r"compressed as a whole.*ingest"), ("zlib", r"compressed as a whole.*ingest"),
     ("sequence", r"SequenceExample.*ingest")],
)  # fmt: skip
def test_what_cannot_be_read_in_place_is_refused_with_the_way_out(sources: Any, case: str, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        sources.read(TFRECORD, sources.folder("tfrecord", case))


# -- hand-made files ---------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def chunk(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(kind: int, message: bytes) -> bytes:
    return chunk(kind, message)


def entry(name: bytes, value: bytes) -> bytes:
    return chunk(1, chunk(1, name) + chunk(2, value))


def example(*entries: bytes) -> bytes:
    return chunk(1, b"".join(entries))


def crc(data: bytes) -> bytes:
    value = google_crc32c.value(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + crc(length) + data + crc(data)


def one_file(sources: Any, data: bytes) -> Any:
    return sources.files({"a.tfrecord": data})


INTS = feature(3, chunk(1, b"\x01\x02"))
GOOD = record(example(entry(b"a", INTS), entry(b"b", feature(1, chunk(1, b"text"))))) * 2


def test_the_hand_made_file_is_valid(sources: Any) -> None:
    read = sources.read(TFRECORD, one_file(sources, GOOD))
    assert [(sample["a"].tolist(), sample["b"]) for sample in read.samples] == [([1, 2], "text")] * 2
    assert [(sample.start, sample.end) for sample in read.found] == [(0, len(GOOD) // 2), (len(GOOD) // 2, len(GOOD))]


def test_lists_that_are_not_packed_are_read(sources: Any) -> None:
    ints = b"".join(b"\x08" + varint(n) for n in (1, -1, 300)) + chunk(1, varint(7))
    floats = b"\x0d" + struct.pack("<f", 0.5) + chunk(1, struct.pack("<2f", 1, 2))
    entries = [entry(b"i", feature(3, ints)), entry(b"f", feature(2, floats))]
    data = record(example(*entries)) + record(example(entry(b"i", b""), entry(b"f", b"")))
    first, second = sources.read(TFRECORD, one_file(sources, data)).samples
    assert (first["i"].tolist(), first["f"].tolist()) == ([1, -1, 300, 7], [0.5, 1, 2])
    assert (second["i"].tolist(), second["f"].tolist()) == ([], [])
    with pytest.raises(FormatError, match="not packed"):
        many = feature(2, b"".join(b"\x0d" + struct.pack("<f", n) for n in range(300)))
        sources.read(TFRECORD, one_file(sources, record(example(entry(b"f", many)))), asked={"f": "float32[300]"})


def test_unknown_fields_are_skipped(sources: Any) -> None:
    unknown = b"\x18\x05" + b"\x25" + bytes(4) + b"\x29" + bytes(8) + chunk(9, b"x")
    value = unknown + INTS + unknown
    data = record(unknown + chunk(1, unknown + chunk(1, unknown + chunk(1, b"a") + chunk(2, value)) + chunk(5, b"")))
    assert sources.read(TFRECORD, one_file(sources, data)).samples[0]["a"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "key",
    [
        "x/train.tfrecord",
        "train.tfrecords",
        "t-00000-of-00100",
        "T.TFREC",
        "d-train.tfrecord-00000-of-00010",
        "a.tfrecord.7",
    ],
)
def test_files_are_recognized_by_their_names(sources: Any, key: str) -> None:
    files = sources.files({key: GOOD, key + ".index": b"x", "README.md": b"x", "empty.tfrecord": b""})
    assert [source.entry.key for source in TFRECORD.objects(files.entries(), files)] == [key]


@pytest.mark.parametrize("key", ["a.tfrecord.gz", "t-00000-of-00100.gz", "a.tfrecords.zst"])
def test_compressed_files_are_refused_by_their_names(sources: Any, key: str) -> None:
    files = sources.files({key: GOOD})
    with pytest.raises(FormatError, match="compressed as a whole"):
        TFRECORD.objects(files.entries(), files)


def test_a_source_without_files_is_an_error(sources: Any) -> None:
    with pytest.raises(FormatError, match="there is no TFRecord file"):
        TFRECORD.objects([], sources.files({}))


HALF = len(GOOD) // 2


def flipped(place: int) -> bytes:
    data = bytearray(GOOD)
    data[place] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "match", "sample"),
    [
        (flipped(0), "checksum of a record's length", 0),
        (flipped(HALF + 9), "checksum of a record's length", 1),
        (flipped(14), "checksum of a record does not", 0),
        (flipped(len(GOOD) - 1), "checksum of a record does not", 1),
        (GOOD[:-1], "ends after the file", 1),
        (GOOD + b"x", "ends early", 2),
        (GOOD[:HALF] + struct.pack("<Q", 2**64 - 1) + crc(struct.pack("<Q", 2**64 - 1)) + bytes(50), "ends after", 1),
        (record(b"\xff" * 11), "more than 64 bits", 0),
        (record(b"\x0a"), "ends within a number", 0),
        (record(b"\x0a\x05\x00"), "ends early", 0),
        (record(b"\x02\x00"), "invalid number", 0),
        (record(b"\x0b"), "unknown form", 0),
        (record(b"\x0d\x00"), "ends early", 0),
        (record(example() + example()), "two sets", 0),
        (record(example(entry(b"a", INTS), entry(b"a", INTS))), "twice", 0),
        (record(example(chunk(1, chunk(1, b"a") + chunk(1, b"b")))), "two names", 0),
        (record(example(entry(b"a", INTS + INTS))), "two lists", 0),
        (record(example(entry(b"a", feature(1, b"") + INTS))), "two lists", 0),
        (record(example(entry(b"\xff", INTS))), "not UTF-8", 0),
        (record(example(entry(b"n" * 300, INTS))), "too long", 0),
        (record(example(*(entry(b"%d" % i, INTS) for i in range(257)))), "too many", 0),
        (record(example(entry(b"a", feature(3, chunk(1, b"\xff"))))), "within a number", 0),
        (record(example(entry(b"a", feature(3, chunk(1, b"\xff" * 9 + b"\x02"))))), "more than 64 bits", 0),
        (record(example(entry(b"a", feature(3, chunk(1, b"\x80" * 10 + b"\x01"))))), "more than 64 bits", 0),
        (record(example(entry(b"a", feature(2, chunk(1, b"\0" * 5))))), "part of an element", 0),
        (record(example(entry(b"a", feature(2, b"\x0d\0")))), "part of an element", 0),
        (record(example(entry(b"a", feature(2, b"\x08\0")))), "unknown field", 0),
        (record(example(entry(b"a", feature(1, b"\x08\0")))), "unknown field", 0),
        (record(example(entry(b"a", feature(1, b"\x0a\x09x")))), "ends early", 0),
        (record(example(entry(b"a", INTS))) + record(example(entry(b"a", feature(2, b"")))), "different kinds", None),
        (record(example(entry(b"a/b", INTS), entry(b"a.b", INTS))), "same name", None),
        (record(example(entry(b"", INTS))), "column's name", None),
        (record(b""), "no tf.train.Example", None),
    ],
)  # fmt: skip
def test_damaged_files_are_errors(sources: Any, data: bytes, match: str, sample: int | None) -> None:
    with pytest.raises(FormatError, match=match) as caught:
        sources.read(TFRECORD, one_file(sources, data))
    assert (caught.value.key, caught.value.sample) == ("a.tfrecord", sample)


def test_features_that_are_missing_later_name_the_sample(sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "SNIFFED_SAMPLES", 1)
    data = record(example(entry(b"a", feature(3, chunk(1, b"\1"))))) + record(example())
    with pytest.raises(FormatError, match="another number of values") as caught:
        sources.read(TFRECORD, one_file(sources, data))
    assert (caught.value.column, caught.value.sample) == ("a", 1)
    twins = record(example(entry(b"a", INTS))) + record(
        example(entry(b"a", INTS), entry(b"b/c", INTS), entry(b"b.c", INTS))
    )
    with pytest.raises(FormatError, match="two features have the same name"):
        sources.read(TFRECORD, one_file(sources, twins))


def test_a_record_larger_than_the_limit_is_refused(sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "_MAX_RECORD_BYTES", 10)
    with pytest.raises(FormatError, match="too large"):
        sources.read(TFRECORD, one_file(sources, GOOD))


@pytest.fixture
def _fresh_library() -> Iterator[None]:
    tfrecord._crc32c.cache_clear()
    yield
    tfrecord._crc32c.cache_clear()


@pytest.mark.usefixtures("_fresh_library")
def test_a_missing_library_says_what_to_install(sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ConfigurationError, match="pip install google-crc32c"):
        sources.read(TFRECORD, one_file(sources, GOOD))


@pytest.mark.usefixtures("_fresh_library")
def test_a_library_without_compiled_code_is_refused(sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    with pytest.raises(ConfigurationError, match="install a wheel"):
        sources.read(TFRECORD, one_file(sources, GOOD))


@given(data=st.data())
def test_mutated_files_are_read_or_refused(data: st.DataObject) -> None:
    sources = SHARED["sources"]
    examples = data.draw(st.sampled_from(SHARED["examples"]))
    changed = bytearray(examples)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed)))
        changed[place : place + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    # Half of the mutations are inside of a record with right checksums, so that they reach the walk of the message.
    if data.draw(st.booleans()):
        changed = bytearray(record(bytes(changed)) + record(examples))
    assert sources.outcome(TFRECORD, one_file(sources, bytes(changed))) in ("index", "walk", "parse", "read")


SHARED: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _shared(sources: Any) -> None:
    """Keeps sources for the property, which cannot use fixtures of a function."""
    if not SHARED:
        golden = sources.folder("tfrecord", "all").files["train-00000-of-00002"]
        (length,) = struct.unpack_from("<Q", golden)
        SHARED["sources"] = sources
        SHARED["examples"] = [golden[12 : 12 + length], GOOD[12 : HALF - 4]]
