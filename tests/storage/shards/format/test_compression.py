from __future__ import annotations

import random
import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.compression import (
    MAX_DICTIONARY_BYTES,
    Decompressor,
    are_simple,
    compress_values,
)


def captions(count: int) -> list[bytes]:
    rng = random.Random(0)
    words = [f"word{i}" for i in range(300)]
    return [" ".join(rng.choices(words, k=12)).encode() for _ in range(count)]


def plain_frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def test_many_alike_values_get_a_dictionary_that_pays() -> None:
    values = captions(500)
    compressed = compress_values(values, overhead_bytes=4)
    assert compressed is not None
    assert compressed.dictionary is not None
    stored = sum(map(len, compressed.frames)) + len(compressed.dictionary) + 4 * len(values)
    assert stored < 0.9 * sum(map(len, values))
    decompressor = Decompressor(compressed.dictionary)
    pairs = zip(compressed.frames, values, strict=True)
    assert all(decompressor.decompress(frame, raw_bytes=len(value)) == value for frame, value in pairs)


def test_few_long_values_are_compressed_without_one() -> None:
    values = [b"abcdefgh" * 1000, b"ijklmnop" * 1000]
    compressed = compress_values(values, overhead_bytes=4)
    assert compressed is not None
    assert compressed.dictionary is None
    assert Decompressor(None).decompress(compressed.frames[1], raw_bytes=8000) == values[1]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b""] * 1000,
        [b"x"] * 900,
        [b"x"] * 5000,
        [random.Random(i).randbytes(100) for i in range(500)],
        [b"ab" * 100],
    ],
    ids=["none", "empty", "empties", "little", "single bytes", "random", "below 1 KiB"],
)
def test_what_does_not_pay_stays_raw(values: list[bytes]) -> None:
    assert compress_values(values, overhead_bytes=4) is None


def test_the_same_values_give_the_same_bytes() -> None:
    assert compress_values(captions(300), overhead_bytes=4) == compress_values(captions(300), overhead_bytes=4)


@given(st.lists(st.sampled_from([b"", b"a", b"abcdefgh" * 20, b'{"key": 1}' * 5, bytes(300)]), max_size=60))
def test_whatever_is_compressed_comes_back(values: list[bytes]) -> None:
    compressed = compress_values(values, overhead_bytes=4)
    if compressed is not None:
        decompressor = Decompressor(compressed.dictionary)
        got = [decompressor.decompress(f, raw_bytes=len(v)) for f, v in zip(compressed.frames, values, strict=True)]
        assert got == values


# -- hostile frames ----------------------------------------------------------------------------------------------------

DATA = b"some data " * 50
FRAME = plain_frame(DATA)
BOMB = plain_frame(bytes(64 << 20))  # 2 KB
SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x28\xb5\x2f\xfd",
        b"hello",
        FRAME[:-1],
        FRAME + b"\0",
        FRAME + FRAME,
        FRAME + SKIPPABLE,
        SKIPPABLE,
        SKIPPABLE + FRAME,
        zstandard.ZstdCompressor(write_content_size=False).compress(DATA),
        plain_frame(DATA + b"more"),
        BOMB,
    ],
    ids=[
        "empty",
        "magic only",
        "no frame",
        "cut",
        "a byte behind",
        "a frame behind",
        "skippable behind",
        "skippable",
        "skippable before",
        "unknown size",
        "longer",
        "bomb",
    ],
)
def test_only_one_frame_of_the_recorded_size_is_decompressed(frame: bytes) -> None:
    with pytest.raises(FormatError):
        Decompressor(None).decompress(frame, raw_bytes=len(DATA))


def test_a_frame_that_lies_about_its_size_is_found_out() -> None:
    # The content size of a single-segment frame below 256 bytes is the byte behind the descriptor.
    frame = bytearray(plain_frame(bytes(200)))
    assert frame[5] == 200
    for lie in (100, 201, 255):
        frame[5] = lie
        with pytest.raises(FormatError):
            Decompressor(None).decompress(bytes(frame), raw_bytes=lie)


def test_a_window_larger_than_the_value_is_refused() -> None:
    # No single segment, 8-byte content size, window descriptor 2**27, one raw last block of one byte.
    frame = b"\x28\xb5\x2f\xfd" + b"\xc0" + bytes([(27 - 10) << 3]) + struct.pack("<Q", 1) + b"\x09\0\0" + b"x"
    assert zstandard.ZstdDecompressor().decompress(frame) == b"x"
    assert zstandard.get_frame_parameters(frame).window_size == 1 << 27
    with pytest.raises(FormatError, match="window"):
        Decompressor(None).decompress(frame, raw_bytes=1)


@pytest.mark.parametrize("frame", [plain_frame(b""), plain_frame(b"") + b"\0", b"\x50\x2a\x4d\x18" + bytes(4), b"x"])
def test_an_empty_value_is_no_bytes_and_nothing_else(frame: bytes) -> None:
    assert Decompressor(None).decompress(b"", raw_bytes=0) == b""
    with pytest.raises(FormatError):
        Decompressor(None).decompress(frame, raw_bytes=0)


@pytest.mark.parametrize(
    "dictionary", [b"", b"\x37\xa4\x30\xec", b"\x37\xa4\x30\xec" + bytes(range(256)), b"raw content " * 100]
)
def test_what_is_no_dictionary_is_refused(dictionary: bytes) -> None:
    with pytest.raises(FormatError):
        Decompressor(dictionary)


def test_a_large_dictionary_is_refused() -> None:
    with pytest.raises(FormatError, match="too large"):
        Decompressor(b"\x37\xa4\x30\xec" + bytes(MAX_DICTIONARY_BYTES))


@given(st.binary(max_size=100))
def test_damaged_frames_give_typed_errors_or_bytes_of_the_recorded_size(noise: bytes) -> None:
    decompressor = Decompressor(None)
    for frame in (noise, FRAME[:4] + noise, FRAME[:8] + noise):
        try:
            assert len(decompressor.decompress(frame, raw_bytes=len(DATA))) == len(DATA)
        except FormatError:
            continue


def _decompressed(frames: list[bytes], raw: list[int], dictionary: bytes | None = None) -> list[bytes]:
    ends, data = np.cumsum([0, *map(len, frames)]), memoryview(b"".join(frames))
    places = data, ends[:-1], ends[1:], np.array(raw, np.uint32)
    found = Decompressor(dictionary).decompress_many(*places, simple=all(frames) and are_simple(*places))
    return [bytes(value) for value in found]


def test_many_values_are_those_of_one_by_one() -> None:
    lengths = [0, 1, 8, 100, 255, 256, 257, 65_791, 65_792, 131_072, 131_073, 300_000]
    values = [bytes([at % 251 for at in range(length)]) for length in lengths] + [b"a photograph"] * 30
    values += [b"x" * 5000, b"Unlike anything before: \x00\xff"]
    dictionary = zstandard.train_dictionary(400, [b"a photograph of number %d" % at for at in range(900)]).as_bytes()
    for each in (None, dictionary):
        trained = None if each is None else zstandard.ZstdCompressionDict(each)
        compressor = zstandard.ZstdCompressor(dict_data=trained, write_dict_id=False)
        frames = [compressor.compress(value) if value else value for value in values]
        assert _decompressed(frames, list(map(len, values)), each) == values
        whole_blocks = slice(1, 9)  # values of one block, 16 of them together with themselves
        assert _decompressed(frames[whole_blocks] * 2, list(map(len, values[whole_blocks])) * 2, each) == (
            values[whole_blocks] * 2
        )


def test_frames_that_the_writer_makes_are_simple_however_many_there_are() -> None:
    frame, several_blocks = plain_frame(b"a photograph"), plain_frame(bytes(range(256)) * 1024)
    for count, odd, expected in ((40_000, frame, True), (40_000, b"", True), (40_000, several_blocks, False)):
        frames = [frame] * count + [odd]
        ends = np.cumsum([0, *map(len, frames)], dtype=np.uint32)
        raw = np.array([*[12] * count, {frame: 12, b"": 0}.get(odd, 1 << 18)], np.uint32)
        assert are_simple(memoryview(b"".join(frames)), ends[:-1], ends[1:], raw) is expected


def test_one_bad_frame_of_many_is_found() -> None:
    value = b"a photograph of a cat, " * 4
    frame = zstandard.ZstdCompressor().compress(value)
    stream = zstandard.ZstdCompressor().compressobj()
    bad = {
        "trailing byte": (frame + b"\0", len(value)),
        "other size": (frame, len(value) + 1),
        "cut": (frame[:-1], len(value)),
        "two frames": (frame + frame, len(value)),
        "no magic number": (b"\0" + frame[1:], len(value)),
        "bytes missing": (b"", len(value)),
        "damaged block": (frame[:9] + bytes(len(frame) - 9), len(value)),
        "unknown size": (stream.compress(value) + stream.flush(), len(value)),
    }
    for what, (data, raw_bytes) in bad.items():
        for at in (0, 10, 19):
            frames, sizes = [frame] * 20, [len(value)] * 20
            frames[at], sizes[at] = data, raw_bytes
            with pytest.raises(FormatError):
                pytest.fail(f"{what}: {_decompressed(frames, sizes)[at]!r}")
