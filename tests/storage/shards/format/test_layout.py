from __future__ import annotations

import json
from typing import Any

import pytest
import xxhash

from concurrent_loader.storage.errors import CorruptData, DigestMismatch, FormatError
from concurrent_loader.storage.shards.format.layout import (
    END_MAGIC,
    FOOTER_BYTES,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_DESCRIPTOR_BYTES,
    Block,
    Footer,
    encode_descriptor,
    encode_footer,
    pad,
    padded,
    parse_descriptor,
    parse_footer,
    parse_header,
)
from concurrent_loader.storage.shards.format.schema import Schema

SCHEMA = Schema.parse({"image": "bytes", "label": "int64", "text": "str"})
BLOCKS = (
    Block("fixed", "label", "raw", 40, 16, 1),
    Block("dictionary", "text", "raw", 56, 5, 2),
    Block("small", "text", "zstd", 64, 20, 3),
    Block("payload_ends", "", "raw", 88, 16, 4),
    Block("payload_digests", "", "raw", 104, 16, 5),
)


def whole(text: bytes, num_samples: int = 2, tail_start: int = 40, start: int = 120) -> tuple[bytes, Footer]:
    stored = text + pad(len(text))
    return stored, Footer(tail_start, start, len(text), 0, num_samples, start + len(stored) + FOOTER_BYTES)


def parse(text: bytes, **footer: int) -> Any:
    return parse_descriptor(*whole(text, **footer), shard="s")


def edited(**changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(encode_descriptor(SCHEMA, 2, BLOCKS))
    return record | changes


def test_padding_goes_to_the_next_multiple_of_eight() -> None:
    assert [(padded(n), len(pad(n))) for n in (0, 1, 7, 8, 9)] == [(0, 0), (8, 7), (8, 1), (8, 0), (16, 7)]


# -- header ------------------------------------------------------------------------------------------------------------


def test_the_header_is_compared_exactly() -> None:
    parse_header(HEADER)
    parse_header(memoryview(HEADER + b"payload"))
    assert len(HEADER) == HEADER_BYTES
    assert HEADER[: len(MAGIC)] == MAGIC
    for at in range(HEADER_BYTES):
        for bit in range(8):
            wrong = bytearray(HEADER)
            wrong[at] ^= 1 << bit
            with pytest.raises(FormatError):
                parse_header(wrong, shard="s")
    for length in range(HEADER_BYTES):
        with pytest.raises(FormatError):
            parse_header(HEADER[:length])


# -- footer ------------------------------------------------------------------------------------------------------------

FOOTER = Footer(
    tail_start=40, descriptor_start=48, descriptor_bytes=13, descriptor_digest=2**64 - 1, num_samples=3, size=128
)


def test_a_footer_comes_back() -> None:
    data = encode_footer(FOOTER)
    assert len(data) == FOOTER_BYTES
    assert data.endswith(END_MAGIC)
    assert parse_footer(memoryview(data), size=128) == FOOTER


def test_every_flipped_bit_of_a_footer_is_found() -> None:
    data = encode_footer(FOOTER)
    for at in range(FOOTER_BYTES):
        for bit in range(8):
            wrong = bytearray(data)
            wrong[at] ^= 1 << bit
            with pytest.raises(CorruptData) as caught:
                parse_footer(wrong, size=128, shard="s")
            assert caught.value.shard == "s"


@pytest.mark.parametrize(
    "changes",
    [
        {"tail_start": 24},
        {"tail_start": 33},
        {"tail_start": 56},
        {"tail_start": 2**64 - 8},
        {"descriptor_start": 49},
        {"descriptor_start": 40},
        {"descriptor_start": 2**64 - 8},
        {"descriptor_bytes": 17},
        {"descriptor_bytes": 2**32 - 1},
        {"num_samples": 129},
        {"num_samples": 2**64 - 1},
        {"size": 136},
        {"size": 0},
    ],
    ids=str,
)
def test_signed_footers_with_impossible_numbers_are_refused(changes: dict[str, int]) -> None:
    fields = {name: getattr(FOOTER, name) for name in Footer.__slots__} | changes
    with pytest.raises(FormatError):
        parse_footer(encode_footer(Footer(**fields)), size=128)


def test_a_long_descriptor_is_refused_before_it_is_fetched() -> None:
    num_bytes = MAX_DESCRIPTOR_BYTES + 8
    size = 48 + num_bytes + FOOTER_BYTES
    with pytest.raises(FormatError, match="are impossible"):
        parse_footer(encode_footer(Footer(40, 48, num_bytes, 0, 3, size)), size=size)


def test_another_version_is_named() -> None:
    for at, value in ((20, 4), (22, 1)):
        data = bytearray(encode_footer(FOOTER))
        data[at] = value
        data[48:56] = xxhash.xxh3_64_intdigest(bytes(data[:48])).to_bytes(8, "little")
        with pytest.raises(FormatError, match="version"):
            parse_footer(data, size=128)


@pytest.mark.parametrize("length", [0, 1, 63, 65])
def test_a_footer_has_64_bytes(length: int) -> None:
    with pytest.raises(FormatError):
        parse_footer((bytes(8) + encode_footer(FOOTER))[-length:] if length else b"", size=128)


def test_a_damaged_footer_is_not_called_a_new_version() -> None:
    data = bytearray(encode_footer(FOOTER))
    data[20] = 9
    with pytest.raises(DigestMismatch):
        parse_footer(data, size=128)


# -- descriptor --------------------------------------------------------------------------------------------------------


def test_a_descriptor_comes_back() -> None:
    descriptor = parse(encode_descriptor(SCHEMA, 2, BLOCKS))
    assert descriptor.schema == SCHEMA
    assert descriptor.num_samples == 2
    assert descriptor.blocks == BLOCKS


def with_block(place: int, **changes: Any) -> dict[str, Any]:
    record = edited()
    record["blocks"][place] |= changes
    return record


def without_block(place: int) -> dict[str, Any]:
    """Takes a block away and closes the gap, so that only its absence is wrong."""
    kept = [block for i, block in enumerate(BLOCKS) if i != place]
    at, blocks = 40, []
    for block in kept:
        blocks.append(Block(block.kind, block.column, block.codec, at, block.length, block.digest))
        at += padded(block.length)
    blocks[-1] = Block(
        *(getattr(blocks[-1], n) for n in ("kind", "column", "codec", "start")), 120 - blocks[-1].start, 0
    )
    record: dict[str, Any] = json.loads(encode_descriptor(SCHEMA, 2, blocks))
    return record


COLUMNS: list[dict[str, Any]] = edited()["columns"]


@pytest.mark.parametrize(
    "record",
    [
        [],
        {},
        edited(more=1),
        edited(num_samples=3),
        edited(num_samples=-1),
        edited(num_samples=2.0),
        edited(num_samples="2"),
        edited(num_samples=2**64),
        edited(columns=[]),
        edited(columns=COLUMNS * 100),
        edited(columns=[*COLUMNS, COLUMNS[0]]),
        edited(columns=[{"name": "image", "type": "object"}, *COLUMNS[1:]]),
        edited(columns=[{"name": "image", "type": " bytes"}, *COLUMNS[1:]]),
        edited(columns=[{"name": "../image", "type": "bytes"}, *COLUMNS[1:]]),
        edited(columns=[{"name": "image"}, *COLUMNS[1:]]),
        edited(columns=[*COLUMNS, {"name": "more", "type": "int8"}]),
        edited(blocks=[]),
        edited(blocks=edited()["blocks"] * 200),
        edited(blocks=edited()["blocks"][::-1]),
        edited(blocks=[*edited()["blocks"], edited()["blocks"][0] | {"start": 120, "length": 0}]),
        *[without_block(place) for place in (0, 2, 3, 4)],
        with_block(0, kind="unknown"),
        with_block(0, kind="small"),
        with_block(0, column="unknown"),
        with_block(0, column="text"),
        with_block(0, codec="zstd"),
        with_block(2, codec="brotli"),
        with_block(2, codec="raw"),  # and so a dictionary without a use
        with_block(1, codec="zstd"),
        with_block(1, column="label"),
        with_block(0, start=32),
        with_block(0, start=48),
        with_block(0, start=-8),
        with_block(0, start=2**63 - 1),
        with_block(0, length=17),
        with_block(0, length=0),
        with_block(0, length=-1),
        with_block(0, length=2**63 - 1),
        with_block(4, length=24),
        with_block(4, length=8),
        with_block(0, digest="1"),
        with_block(0, digest=1),
        with_block(0, digest="000000000000000G"),
        with_block(0, digest="00000000000000001"),
        with_block(0, digest="0000000000000001\n"),
        with_block(0, more=1),
    ],
    ids=lambda record: json.dumps(record)[-60:],
)
def test_descriptors_that_no_writer_writes_are_refused(record: Any) -> None:
    with pytest.raises(FormatError) as caught:
        parse(json.dumps(record).encode())
    assert caught.value.shard == "s"


def test_a_zstd_column_needs_no_dictionary() -> None:
    assert len(parse(json.dumps(without_block(1)).encode()).blocks) == 4


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"null", b"{" * 5000, b"[" * 100_000, b'{"num_samples":' * 5000, b"1e999"]
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError):
        parse(text)


def test_padding_of_the_descriptor_is_zero() -> None:
    text = encode_descriptor(SCHEMA, 2, BLOCKS) + b" "
    while len(text) % 8 != 4:
        text += b" "
    stored, footer = whole(text)
    parse_descriptor(stored, footer)
    with pytest.raises(FormatError, match="padding"):
        parse_descriptor(stored[:-1] + b"\1", footer)
