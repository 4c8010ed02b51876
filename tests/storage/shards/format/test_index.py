from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from concurrent_loader.storage.errors import CorruptData, DigestMismatch, FormatError, SchemaError
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.builder import FinishedShard, ShardBuilder
from concurrent_loader.storage.shards.format.index import ShardIndex, verify_shard
from concurrent_loader.storage.shards.format.layout import (
    FOOTER_BYTES,
    HEADER,
    HEADER_BYTES,
    Footer,
    encode_footer,
    pad,
    padded,
    parse_footer,
)
from concurrent_loader.storage.shards.format.schema import Schema


def build(types: Mapping[str, str], samples: Iterable[Mapping[str, object]]) -> FinishedShard:
    builder = ShardBuilder(Schema.parse(types))
    for sample in samples:
        builder.add(sample)
    return builder.finish()


def opened(data: bytes, shard: str | None = "s") -> ShardIndex:
    """Opens a shard as a reader that knows nothing: footer, then tail."""
    footer = parse_footer(data[-FOOTER_BYTES:], size=len(data), shard=shard)
    return ShardIndex.parse(data[footer.tail_start :], tail_start=footer.tail_start, size=len(data), shard=shard)


def read(data: bytes) -> list[dict[str, Any]]:
    """Reads all samples by ranges."""
    index = opened(data)
    samples = []
    for row in range(index.num_samples):
        sample = {}
        for column in index.schema:
            if column in index.schema.payload:
                where = index.payload_range(row, column.name)
                sample[column.name] = index.decode_value(column.name, row, data[where.start : where.end])
            else:
                sample[column.name] = index.value(column.name, row)
        samples.append(sample)
    return samples


def same(got: Any, value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(got.dtype == value.dtype and got.shape == value.shape and got.tobytes() == value.tobytes())
    if isinstance(value, float) and math.isnan(value):
        return math.isnan(got)
    return type(got) is type(value) and bool(got == value)


# -- round trips -------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=40),
    "str": st.text(max_size=40) | st.just("the same photograph of the same thing " * 5),
    "json": JSON,
    "jpeg": st.binary(max_size=9).map(lambda data: b"\xff\xd8\xff" + data),
    "png": st.binary(max_size=9).map(lambda data: b"\x89PNG\r\n\x1a\n" + data),
    "webp": st.binary(max_size=9).map(lambda data: b"RIFF\1\0\0\0WEBP" + data),
    "image": st.sampled_from([b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"RIFF\1\0\0\0WEBP"]),
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float16": st.floats(width=16),
    "float32": st.floats(width=32),
    "float64": st.floats(width=64),
    "float32[2,3]": hnp.arrays("<f4", (2, 3)),
    "bool[3]": hnp.arrays("?", (3,)),
    "int16[600]": hnp.arrays("<i2", (600,), fill=st.integers(-9, 9)),
    "float64[...]": hnp.arrays("<f8", SHAPES),
    "uint8[...]": hnp.arrays("u1", SHAPES),
    "bool[...]": hnp.arrays("?", SHAPES),
}


@settings(settings.get_profile("thorough"), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_every_sample_comes_back(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=6))
    types = {f"c{i}": type_ for i, type_ in enumerate(chosen)}
    samples = data.draw(st.lists(st.fixed_dictionaries({n: VALUES[t] for n, t in types.items()}), max_size=6))
    shard = build(types, samples)
    file = shard.tobytes()
    got = read(file)
    assert len(got) == len(samples)
    for mine, theirs in zip(got, samples, strict=True):
        assert all(same(mine[name], theirs[name]) for name in types)
    index = verify_shard(file)
    assert index.tail_start == shard.tail_start
    for name in (c.name for c in (*index.schema.fixed, *index.schema.small)):
        column = index.column(name)
        assert len(column) == len(samples)
        for value, sample in zip(column, samples, strict=True):
            assert same(value.item() if isinstance(value, np.generic) else value, sample[name])


TYPES = {"image": "jpeg", "flag": "bool", "label": "int32", "text": "str", "box": "float32[2]", "points": "int16[...]"}
SAMPLES: list[dict[str, Any]] = [
    {
        "image": b"\xff\xd8\xff" + bytes([i]) * i,
        "flag": i % 2 == 1,
        "label": i * 1000,
        "text": "naïve " * i,
        "box": np.array([i, -i], "<f4"),
        "points": np.arange(2 * i, dtype="<i2").reshape(i, 2),
    }
    for i in range(4)
]
SHARD = build(TYPES, SAMPLES)
FILE = SHARD.tobytes()
INDEX = opened(FILE)
ALIKE = build(
    {"text": "str", "image": "bytes"}, [{"text": f"sample {i:04d} of them all", "image": b"x"} for i in range(100)]
)


# -- where things are --------------------------------------------------------------------------------------------------


def test_payload_is_sample_major_without_gaps() -> None:
    at = HEADER_BYTES
    for row, sample in enumerate(SAMPLES):
        start = at
        for name in ("image", "points"):
            where = INDEX.payload_range(row, name)
            assert where.start == at
            at = where.end
            assert INDEX.payload_digest(row, name) == xxhash.xxh3_64_intdigest(FILE[where.start : where.end])
            assert int(INDEX.payload_starts(name)[row]) == where.start
            assert int(INDEX.payload_ends(name)[row]) == where.end
            assert int(INDEX.payload_digests(name)[row]) == INDEX.payload_digest(row, name)
        assert INDEX.sample_range(row) == ByteRange(start, at)
        assert FILE[start:].startswith(sample["image"])
    assert padded(at) == INDEX.tail_start == SHARD.tail_start


def test_one_column_is_one_range() -> None:
    where = INDEX.column_block("label")
    np.testing.assert_array_equal(np.frombuffer(FILE[where.start : where.end], "<i4"), [0, 1000, 2000, 3000])
    assert len(INDEX.column_block("text")) == 4 * 5 + sum(len(s["text"].encode()) for s in SAMPLES)
    with pytest.raises(SchemaError):
        INDEX.column_block("image")


def test_fixed_columns_are_read_only_views_and_numbers_are_python_numbers() -> None:
    label = INDEX.column("label")
    assert isinstance(label, np.ndarray)
    assert (label.dtype, label.shape) == (np.dtype("<i4"), (4,))
    for array in (label, INDEX.column("box"), INDEX.payload_starts("image"), INDEX.payload_digests("image")):
        assert isinstance(array, np.ndarray)
        assert not array.flags.writeable
    assert type(INDEX.value("label", 1)) is int
    assert type(INDEX.value("flag", 1)) is bool
    assert not INDEX.value("box", 1).flags.writeable


def test_a_writable_tail_gives_read_only_arrays_and_a_shifted_one_aligned_arrays() -> None:
    memory = bytearray(16 + len(FILE))
    for shift in range(9):
        memory[shift : shift + len(FILE)] = FILE
        tail = memoryview(memory)[shift + SHARD.tail_start : shift + len(FILE)]
        index = ShardIndex.parse(tail, tail_start=SHARD.tail_start, size=len(FILE))
        for array in (index.column("label"), index.payload_ends("image")):
            assert isinstance(array, np.ndarray)
            assert array.flags.aligned
            assert not array.flags.writeable
        assert index.column("text") == [s["text"] for s in SAMPLES]


def test_rows_and_names_that_are_none() -> None:
    for row in (-1, 4, 2**70):
        for call in (INDEX.sample_range, lambda r: INDEX.value("label", r), lambda r: INDEX.payload_range(r, "image")):
            with pytest.raises(IndexError):
                call(row)
    for name in ("label", "text", "unknown"):
        for ask in (INDEX.payload_starts, INDEX.payload_ends, INDEX.payload_digests):
            with pytest.raises(SchemaError):
                ask(name)
    for name in ("image", "unknown"):
        with pytest.raises(SchemaError):
            INDEX.column(name)
        with pytest.raises(SchemaError):
            INDEX.value(name, 0)


def test_a_shard_of_columns_only_and_one_without_samples() -> None:
    bundle = opened(build({"label": "int64"}, [{"label": i} for i in range(5)]).tobytes())
    assert bundle.tail_start == HEADER_BYTES
    assert bundle.sample_range(3) == ByteRange(HEADER_BYTES, HEADER_BYTES)
    empty = verify_shard(build(TYPES, []).tobytes())
    assert empty.num_samples == 0
    assert empty.payload_starts("image").shape == (0,)
    assert [np.shape(empty.column(name)) for name in ("label", "box", "text")] == [(0,), (0, 2), (0,)]


def test_wrong_bytes_for_a_value_name_shard_sample_and_column() -> None:
    where = INDEX.payload_range(2, "image")
    data = FILE[where.start : where.end]
    for wrong in (data[:-1], data + b"\0", b"", data[:-1] + b"x", FILE[: len(data)]):
        with pytest.raises(DigestMismatch) as caught:
            INDEX.decode_value("image", 2, wrong)
        assert (caught.value.shard, caught.value.sample, caught.value.column) == ("s", 2, "image")


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [FILE, ALIKE.tobytes()], ids=["raw", "zstd"])
def test_a_cut_at_every_offset_is_an_error(file: bytes) -> None:
    tail_start = opened(file).tail_start
    for length in range(len(file)):
        cut = file[:length]
        with pytest.raises(CorruptData):
            opened(cut)
        with pytest.raises(CorruptData):
            verify_shard(cut)
        # The same for a reader that goes by a manifest, whether or not it believes the length it got.
        for size in (length, len(file)):
            with pytest.raises(CorruptData):
                ShardIndex.parse(cut[tail_start:], tail_start=tail_start, size=size)
    for surplus in (b"\0", bytes(8), file):
        with pytest.raises(CorruptData):
            verify_shard(file + surplus)


@pytest.mark.slow
@pytest.mark.parametrize("file", [FILE, ALIKE.tobytes()], ids=["raw", "zstd"])
def test_a_flipped_bit_at_every_byte_is_found(file: bytes) -> None:
    tail_start = opened(file).tail_start
    for at in range(len(file)):
        damaged = bytearray(file)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(CorruptData):
            verify_shard(damaged)
        if at >= tail_start:
            with pytest.raises(CorruptData):
                ShardIndex.parse(damaged[tail_start:], tail_start=tail_start, size=len(file))


def test_a_flipped_payload_bit_spares_all_other_values() -> None:
    where = INDEX.payload_range(2, "image")
    damaged = bytearray(FILE)
    damaged[where.start] ^= 1
    index = opened(bytes(damaged))
    for row in range(4):
        for name in ("image", "points"):
            span = index.payload_range(row, name)
            data = damaged[span.start : span.end]
            if (row, name) == (2, "image"):
                with pytest.raises(DigestMismatch):
                    index.decode_value(name, row, data)
            else:
                assert same(index.decode_value(name, row, bytes(data)), SAMPLES[row][name])


def test_a_tail_is_not_taken_for_another_shards() -> None:
    other = build(TYPES, SAMPLES[:3])
    with pytest.raises(FormatError, match="elsewhere"):
        ShardIndex.parse(FILE[SHARD.tail_start - 8 :], tail_start=SHARD.tail_start - 8, size=len(FILE))
    with pytest.raises(FormatError):
        ShardIndex.parse(FILE[SHARD.tail_start :], tail_start=SHARD.tail_start - 8, size=len(FILE) - 8)
    with pytest.raises(FormatError):
        ShardIndex.parse(FILE[SHARD.tail_start :], tail_start=other.tail_start, size=other.size)


# -- hostile files with good digests -----------------------------------------------------------------------------------

Entry = tuple[str, str, str, bytes]


def signed(
    columns: Mapping[str, str],
    entries: Iterable[Entry],
    *,
    num_samples: int,
    payload: bytes = b"",
    **table: dict[str, Any],
) -> bytes:
    """Assembles a file whose every digest is right, whatever else is wrong; knows nothing of the builder."""
    file = HEADER + payload + pad(len(payload))
    tail_start, blocks = len(file), []
    for kind, column, codec, data in entries:
        stored = data + pad(len(data))
        block: dict[str, Any] = {
            "kind": kind,
            "column": column,
            "codec": codec,
            "start": len(file),
            "length": len(data),
        }
        block |= {"digest": f"{xxhash.xxh3_64_intdigest(stored):016x}"} | table.get(kind, {})
        blocks.append(block)
        file += stored
    records = [{"name": name, "type": type_} for name, type_ in columns.items()]
    text = json.dumps({"num_samples": num_samples, "columns": records, "blocks": blocks}).encode()
    stored = text + pad(len(text))
    size = len(file) + len(stored) + FOOTER_BYTES
    footer = Footer(tail_start, len(file), len(text), xxhash.xxh3_64_intdigest(stored), num_samples, size)
    return file + stored + encode_footer(footer)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def payload_file(payload: bytes, ends: Iterable[int], *, type_: str = "bytes", num_samples: int = 2) -> bytes:
    ends = list(ends)
    starts = [HEADER_BYTES, *ends][: len(ends)]
    values = [payload[max(0, s - 32) : max(0, e - 32)] for s, e in zip(starts, ends, strict=True)]
    digests = u64(*map(xxhash.xxh3_64_intdigest, values))
    entries = [("payload_ends", "", "raw", u64(*ends)), ("payload_digests", "", "raw", digests)]
    return signed({"x": type_}, entries, num_samples=num_samples, payload=payload)


def test_the_forge_makes_good_files() -> None:
    assert read(payload_file(b"abcde", [34, 37])) == [{"x": b"ab"}, {"x": b"cde"}]
    fixed = signed({"x": "int8"}, [("fixed", "x", "raw", b"\1\2\3")], num_samples=3)
    assert read(fixed) == [{"x": 1}, {"x": 2}, {"x": 3}]
    small = signed({"x": "str"}, [("small", "x", "raw", u32(0, 1, 3) + b"abc")], num_samples=2)
    assert read(small) == [{"x": "a"}, {"x": "bc"}]


@pytest.mark.parametrize(
    "ends",
    [
        [37, 34],
        [34, 36],
        [31, 37],
        [0, 37],
        [34, 45],
        [34, 2**64 - 1],
        [2**63, 37],
        [34, 50, 37],
        [37],
        [],
    ],
    ids=str,
)
def test_payload_ends_that_cannot_be(ends: list[int]) -> None:
    # 16 bytes of payload, of which 5 to 8 may be values: [36] would leave more than 7 bytes of padding.
    payload = b"abcde" if 36 not in ends else b"abcde" + bytes(8)
    with pytest.raises(FormatError):
        opened(payload_file(payload, ends))


def test_padding_behind_the_payload_is_zero() -> None:
    with pytest.raises(FormatError, match="padding"):
        verify_shard(payload_file(b"abcdeX", [34, 37]))


@pytest.mark.parametrize("num_samples", [0, 1, 4, 100])
def test_counts_that_do_not_fit_their_blocks(num_samples: int) -> None:
    files = [
        signed({"x": "int8"}, [("fixed", "x", "raw", b"\1\2\3")], num_samples=num_samples),
        signed({"x": "bool[3]"}, [("fixed", "x", "raw", bytes(6))], num_samples=num_samples),
        payload_file(b"abcde", [34, 37], num_samples=num_samples),
    ]
    if num_samples > 1:
        files.append(signed({"x": "str"}, [("small", "x", "raw", u32(0, 3) + b"abc")], num_samples=num_samples))
    for file in files:
        with pytest.raises(FormatError):
            opened(file)


def test_a_count_beyond_the_file_is_refused_by_the_footer() -> None:
    for num_samples in (10**6, 2**62):
        with pytest.raises(FormatError, match="footer"):
            opened(signed({"x": "int8"}, [("fixed", "x", "raw", b"\1")], num_samples=num_samples))


@pytest.mark.parametrize("block", [b"\0\1\2", b"\0\1\xff"])
def test_a_bool_column_holds_bools(block: bytes) -> None:
    with pytest.raises(FormatError, match="bool") as caught:
        opened(signed({"x": "bool"}, [("fixed", "x", "raw", block)], num_samples=3))
    assert caught.value.column == "x"


def test_padding_of_a_block_is_zero() -> None:
    stored = b"\1\2\3" + b"\0\0\0\0X"
    lies = {"length": 3, "digest": f"{xxhash.xxh3_64_intdigest(stored):016x}"}
    with pytest.raises(FormatError, match="padding"):
        opened(signed({"x": "int8"}, [("fixed", "x", "raw", stored)], num_samples=3, fixed=lies))


@pytest.mark.parametrize("lies", [{"start": 32 + 8}, {"start": 0}, {"length": 2**40}, {"length": 9}], ids=str)
def test_blocks_that_lie_about_their_place(lies: dict[str, int]) -> None:
    with pytest.raises(FormatError):
        opened(signed({"x": "int8"}, [("fixed", "x", "raw", b"\1\2\3")], num_samples=3, fixed=lies))


BOMB = zstandard.ZstdCompressor().compress(bytes(64 << 20))


@pytest.mark.parametrize("raw_lengths", [(4,), (64 << 20,), ((64 << 20) + 1,)])
def test_bombs(raw_lengths: tuple[int]) -> None:
    entry = ("small", "x", "zstd", u32(0, len(BOMB)) + u32(*raw_lengths) + BOMB)
    file = signed({"x": "json"}, [entry], num_samples=1)
    with pytest.raises(FormatError) as caught:
        read(file)  # the honest one is 64 MiB of zeros, which is no JSON
    assert caught.value.column == "x" or caught.value.sample == 0
    assert caught.value.shard == "s"


def test_a_bomb_of_many_values_is_refused_as_a_whole() -> None:
    count = 17  # of 64 MiB each
    offsets = u32(*[i * len(BOMB) for i in range(count + 1)])
    entry = ("small", "x", "zstd", offsets + u32(*[64 << 20] * count) + BOMB * count)
    with pytest.raises(FormatError, match="too long"):
        opened(signed({"x": "str"}, [entry], num_samples=count))


def test_a_dictionary_that_is_none() -> None:
    frame = zstandard.ZstdCompressor().compress(b"hello")
    entries = [("dictionary", "x", "raw", b"nonsense" * 100), ("small", "x", "zstd", u32(0, len(frame), 5) + frame)]
    with pytest.raises(FormatError, match="dictionary") as caught:
        opened(signed({"x": "str"}, entries, num_samples=1))
    assert (caught.value.column, caught.value.shard) == ("x", "s")


@pytest.mark.parametrize("value", [b"[" * 100_000, b"\xff", b"", b"1 2"], ids=["nested", "no text", "empty", "two"])
def test_json_that_is_none_names_its_place(value: bytes) -> None:
    index = opened(signed({"x": "json"}, [("small", "x", "raw", u32(0, len(value)) + value)], num_samples=1))
    for call in (lambda: index.value("x", 0), lambda: index.column("x")):
        with pytest.raises(FormatError) as caught:
            call()
        assert (caught.value.shard, caught.value.sample, caught.value.column) == ("s", 0, "x")


@pytest.mark.parametrize(
    "value", [b"", b"\x21" + bytes(7), b"\1" + bytes(7) + u64(2**60), b"\2" + bytes(7) + u64(0, 2**63)]
)
def test_a_signed_ragged_array_that_cannot_be_names_its_place(value: bytes) -> None:
    file = payload_file(value, [32 + len(value)], type_="float32[...]", num_samples=1)
    index = opened(file)
    with pytest.raises(FormatError) as caught:
        index.decode_value("x", 0, value)
    assert (caught.value.shard, caught.value.sample, caught.value.column) == ("s", 0, "x")


@settings(settings.get_profile("thorough"))
@given(data=st.data())
def test_noise_in_signed_blocks_gives_typed_errors_only(data: st.DataObject) -> None:
    types = {"a": "bytes", "b": "str", "c": "int8", "d": "bool[2]"}
    blocks = {"payload_ends": "", "payload_digests": "", "small": "b"}
    codec = data.draw(st.sampled_from(["raw", "zstd"]))
    entries: list[Entry] = [("fixed", "c", "raw", data.draw(st.binary(max_size=3)))]
    entries.append(("fixed", "d", "raw", data.draw(st.binary(max_size=6))))
    noise = st.lists(st.sampled_from([0, 1, 4, 32, 34, 2**32 - 1]), max_size=6).map(lambda values: u32(*values))
    for kind, column in blocks.items():
        block = data.draw(noise | st.binary(max_size=40))
        entries.append((kind, column, codec if kind == "small" else "raw", block))
    file = signed(types, entries, num_samples=data.draw(st.integers(0, 3)), payload=data.draw(st.binary(max_size=9)))
    try:
        verify_shard(file)
    except CorruptData:
        return
    read(file)  # what is verified can be read
