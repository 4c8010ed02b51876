"""The byte structures of a shard that are not values: header, descriptor with its block table, footer. No I/O.

::

    header | payload, sample by sample | blocks: columns, index | descriptor | footer
             32                          tail_start                            size - 64

``docs/format.md`` is the specification. Everything is little-endian. Digests are xxh3_64: they find accidents, not
attackers, so every number is checked against the file's size as well, before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import xxhash

from storage.errors import DigestMismatch, FormatError, SchemaError
from storage.shards.columns import MAX_COLUMNS, Column, Schema
from storage.stores.protocol import Buffer

__all__ = [
    "CHUNK_BYTES",
    "END_MAGIC",
    "FOOTER_BYTES",
    "HEADER",
    "HEADER_BYTES",
    "MAGIC",
    "MAX_DESCRIPTOR_BYTES",
    "MAX_SMALL_COLUMN_BYTES",
    "VERSION",
    "Block",
    "Descriptor",
    "Footer",
    "check_digest",
    "encode_descriptor",
    "encode_footer",
    "pad",
    "padded",
    "parse_descriptor",
    "parse_footer",
    "parse_header",
]

# As in PNG: no text file begins so, and transfers that strip the eighth bit or translate line ends show at once.
MAGIC = b"\x89CLS\r\n\x1a\n"
END_MAGIC = b"\x8aSLC\r\n\x1a\n"
VERSION = 1
HEADER_BYTES = 32
FOOTER_BYTES = 64
CHUNK_BYTES = 8 << 20
"""The grid of transfer chunks, from byte 0 of the file; a manifest keeps a digest for each."""
MAX_DESCRIPTOR_BYTES = 16 << 20
MAX_SMALL_COLUMN_BYTES = 1 << 30
"""Of the raw values of one str or json column of one shard together: offsets have 32 bits, and a bomb has an end."""

_ALIGNMENT = 8
_FOOTER = struct.Struct("<QQIHHQQQ")
_SIGNED_FOOTER_BYTES = _FOOTER.size
_U64 = struct.Struct("<Q")

HEADER = MAGIC + struct.pack("<HHI16x", VERSION, HEADER_BYTES, 0)


def padded(num_bytes: int) -> int:
    """Rounds up to the alignment of blocks."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def pad(num_bytes: int) -> bytes:
    """Returns the zeros that follow so many bytes."""
    return bytes(padded(num_bytes) - num_bytes)


def parse_header(data: Buffer, *, shard: str | None = None) -> None:
    """Checks the first 32 bytes of a shard; they say nothing else than what the file is.

    Raises:
        FormatError: They are not those of a shard of this version.
    """
    head = bytes(data[:HEADER_BYTES])
    if head[: len(MAGIC)] != MAGIC:
        raise FormatError("not a shard: wrong magic bytes", shard=shard, expected=MAGIC, got=head[: len(MAGIC)])
    if head != HEADER:
        raise FormatError("the header is not one of this version", shard=shard, expected=HEADER, got=head)


# -- footer ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Footer:
    """The last 64 bytes of a shard, checked.

    Attributes:
        tail_start: Where blocks begin; all bytes from here on are what `ShardIndex.parse` takes.
        descriptor_start: Absolute.
        descriptor_bytes: Without its padding.
        descriptor_digest: xxh3_64 of the descriptor with its padding.
        num_samples: In the shard.
        size: Of the file.
    """

    tail_start: int
    descriptor_start: int
    descriptor_bytes: int
    descriptor_digest: int
    num_samples: int
    size: int


def encode_footer(footer: Footer) -> bytes:
    """Returns the 64 bytes."""
    signed = _FOOTER.pack(
        footer.tail_start,
        footer.descriptor_start,
        footer.descriptor_bytes,
        VERSION,
        0,
        footer.descriptor_digest,
        footer.num_samples,
        footer.size,
    )
    return signed + _U64.pack(xxhash.xxh3_64_intdigest(signed)) + END_MAGIC


def parse_footer(data: Buffer, *, size: int, shard: str | None = None) -> Footer:
    """Checks and decodes a footer.

    Args:
        data: The last 64 bytes of the shard.
        size: Of the whole file, as the store (or the manifest) says.
        shard: For errors.

    Raises:
        FormatError: Not a shard, cut, of another version, or with numbers that cannot be.
        DigestMismatch: Damaged.
    """
    data = bytes(data)
    if len(data) != FOOTER_BYTES or data[-len(END_MAGIC) :] != END_MAGIC:
        raise FormatError(
            "not a shard, or cut: no end magic", shard=shard, expected=END_MAGIC, got=data[-len(END_MAGIC) :]
        )
    (digest,) = _U64.unpack_from(data, _SIGNED_FOOTER_BYTES)
    check_digest(data[:_SIGNED_FOOTER_BYTES], digest, "the footer's digest disagrees", shard=shard)
    tail_start, start, num_bytes, version, reserved, descriptor_digest, num_samples, file_size = _FOOTER.unpack_from(
        data
    )
    if version != VERSION or reserved != 0:
        raise FormatError(
            "a shard of a version that this reader does not know", shard=shard, expected=VERSION, got=version
        )
    if file_size != size:
        raise FormatError("the shard is not as long as its footer says", shard=shard, expected=file_size, got=size)
    sound = (
        HEADER_BYTES <= tail_start <= start <= size - FOOTER_BYTES
        and tail_start % _ALIGNMENT == start % _ALIGNMENT == 0
        and num_bytes <= MAX_DESCRIPTOR_BYTES
        and start + padded(num_bytes) == size - FOOTER_BYTES
        and num_samples <= size  # every sample has at least a byte in some block
    )
    if not sound:
        raise FormatError(
            "the footer's numbers cannot be", shard=shard, got=(tail_start, start, num_bytes, num_samples, size)
        )
    return Footer(tail_start, start, num_bytes, descriptor_digest, num_samples, size)


# -- descriptor --------------------------------------------------------------------------------------------------------

_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_HexDigest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$", max_length=16)]


class _ColumnRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(max_length=64)]
    type: Annotated[str, msgspec.Meta(max_length=512)]


class _BlockRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Annotated[str, msgspec.Meta(max_length=64)]
    column: Annotated[str, msgspec.Meta(max_length=64)]
    codec: Annotated[str, msgspec.Meta(max_length=64)]
    start: _Count
    length: _Count
    digest: _HexDigest


class _DescriptorRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    num_samples: _Count
    columns: Annotated[list[_ColumnRecord], msgspec.Meta(max_length=MAX_COLUMNS)]
    blocks: Annotated[list[_BlockRecord], msgspec.Meta(max_length=2 * MAX_COLUMNS + 2)]


_DECODER = msgspec.json.Decoder(_DescriptorRecord)


@dataclass(frozen=True, slots=True)
class Block:
    """One entry of the block table.

    Attributes:
        kind: ``fixed``, ``small``, ``dictionary`` (of a column), ``payload_ends``, ``payload_digests`` (of all).
        column: Its name; empty for blocks of all columns.
        codec: ``raw`` or ``zstd``.
        start: Absolute.
        length: Without padding.
        digest: xxh3_64 of the block with its padding.
    """

    kind: str
    column: str
    codec: str
    start: int
    length: int
    digest: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a shard says about itself: columns in order, number of samples, blocks in order."""

    schema: Schema
    num_samples: int
    blocks: tuple[Block, ...]

    def block(self, kind: str, column: str = "") -> Block | None:
        """Returns the block of a kind and a column, or None."""
        return next((block for block in self.blocks if block.kind == kind and block.column == column), None)


def encode_descriptor(schema: Schema, num_samples: int, blocks: Sequence[Block]) -> bytes:
    """Returns the JSON text, without padding."""
    return msgspec.json.encode(
        _DescriptorRecord(
            num_samples=num_samples,
            columns=[_ColumnRecord(column.name, column.type) for column in schema],
            blocks=[
                _BlockRecord(block.kind, block.column, block.codec, block.start, block.length, f"{block.digest:016x}")
                for block in blocks
            ],
        )
    )


def parse_descriptor(data: Buffer, footer: Footer, *, shard: str | None = None) -> Descriptor:
    """Checks and decodes the descriptor: its blocks are known, complete, and tile the tail without gap or overlap.

    Args:
        data: The descriptor with its padding, digest already checked.
        footer: Of the same shard.
        shard: For errors.

    Raises:
        FormatError: Anything that no writer of this version writes.
    """
    text, zeros = data[: footer.descriptor_bytes], data[footer.descriptor_bytes :]
    try:
        record = _DECODER.decode(text)
        schema = Schema(tuple(Column(column.name, column.type) for column in record.columns))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, SchemaError) as error:
        raise FormatError(f"the descriptor is not valid: {error}", shard=shard) from error
    if any(zeros):
        raise FormatError("padding is not zero", shard=shard)
    if [column.type for column in schema] != [column.type for column in record.columns]:
        raise FormatError("a column's type is not in its canonical form", shard=shard)
    if record.num_samples != footer.num_samples:
        raise FormatError(
            "descriptor and footer disagree on the number of samples",
            shard=shard,
            expected=footer.num_samples,
            got=record.num_samples,
        )
    blocks = tuple(
        Block(block.kind, block.column, block.codec, block.start, block.length, int(block.digest, 16))
        for block in record.blocks
    )
    _check_tiling(blocks, footer, shard)
    _check_completeness(schema, blocks, shard)
    return Descriptor(schema, record.num_samples, blocks)


def _check_tiling(blocks: Sequence[Block], footer: Footer, shard: str | None) -> None:
    at = footer.tail_start
    for block in blocks:
        if block.start != at:
            raise FormatError("blocks overlap or leave a gap", shard=shard, expected=at, got=block.start)
        at += padded(block.length)
        if at > footer.descriptor_start:
            raise FormatError("a block goes beyond the tail", shard=shard, expected=footer.descriptor_start, got=at)
    if at != footer.descriptor_start:
        raise FormatError("blocks do not fill the tail", shard=shard, expected=footer.descriptor_start, got=at)


def _check_completeness(schema: Schema, blocks: Sequence[Block], shard: str | None) -> None:
    codecs = {(block.kind, block.column): block.codec for block in blocks}
    if len(codecs) != len(blocks):
        raise FormatError("a block occurs twice", shard=shard)
    required: dict[tuple[str, str], tuple[str, ...]] = {("fixed", column.name): ("raw",) for column in schema.fixed}
    required |= {("small", column.name): ("raw", "zstd") for column in schema.small}
    if schema.payload:
        required |= {("payload_ends", ""): ("raw",), ("payload_digests", ""): ("raw",)}
    # A dictionary is there or not, but never without the frames that need it.
    required |= {key: ("raw",) for key in codecs if key[0] == "dictionary" and codecs.get(("small", key[1])) == "zstd"}
    if required.keys() != codecs.keys():
        odd = sorted(required.keys() ^ codecs.keys())
        raise FormatError("blocks are missing or of an unknown kind", shard=shard, got=odd[:4])
    for key, codec in codecs.items():
        if codec not in required[key]:
            raise FormatError("a block has a codec that its kind does not allow", shard=shard, column=key[1], got=codec)


def check_digest(
    data: Buffer, expected: int, what: str, *, shard: str | None, sample: int | None = None, column: str | None = None
) -> None:
    """Compares an xxh3_64 digest.

    Raises:
        DigestMismatch: It disagrees.
    """
    got = xxhash.xxh3_64_intdigest(data)
    if got != expected:
        raise DigestMismatch(
            what, shard=shard, sample=sample, column=column, expected=f"{expected:016x}", got=f"{got:016x}"
        )
