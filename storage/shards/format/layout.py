"""The structures of a shard around its values: header, descriptor with block table, footer. No I/O.

::

    header | payload, sample by sample | blocks: columns, index | descriptor | footer
             32                          tail_start                            size - 64

``docs/reference/format.md`` is the specification. Everything is little-endian. Digests are xxh3_64: they detect
accidents, not attacks. So every number is also checked against the file's size before memory is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import xxhash

from concurrent_loader.storage.errors import DigestMismatch, FormatError, SchemaError
from concurrent_loader.storage.shards.format.schema import MAX_COLUMNS, Column, Schema
from concurrent_loader.storage.stores.objects import Buffer

__all__ = [
    "CHUNK_BYTES",
    "END_MAGIC",
    "FOOTER_BYTES",
    "HEADER",
    "HEADER_BYTES",
    "MAGIC",
    "MAX_DESCRIPTOR_BYTES",
    "MAX_SMALL_COLUMN_BYTES",
    "NULLS_VERSION",
    "VERSION",
    "VIRTUAL_VERSION",
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

# As in PNG: no text file begins like this, and it reveals transfers that strip bits or translate line ends.
MAGIC = b"\x89CLS\r\n\x1a\n"
END_MAGIC = b"\x8aSLC\r\n\x1a\n"
VERSION = 1
VIRTUAL_VERSION = 2
"""Version of the tail of a virtual shard, whose payload is the range of another file, gaps included."""
NULLS_VERSION = 3
"""Version of the tail of a shard with nulls, in which columns may be optional."""
HEADER_BYTES = 32
FOOTER_BYTES = 64
CHUNK_BYTES = 8 << 20
"""Size of a transfer chunk, counted from byte 0 of the file; a manifest has a digest for each chunk."""
MAX_DESCRIPTOR_BYTES = 16 << 20
MAX_SMALL_COLUMN_BYTES = 1 << 30
"""Upper bound of one str or json column of a shard, uncompressed: offsets have 32 bits, and it limits bombs."""

_ALIGNMENT = 8
_FOOTER = struct.Struct("<QQIHHQQQ")
_SIGNED_FOOTER_BYTES = _FOOTER.size
_U64 = struct.Struct("<Q")

HEADER = MAGIC + struct.pack("<HHI16x", VERSION, HEADER_BYTES, 0)


def padded(num_bytes: int) -> int:
    """Rounds up to the alignment of blocks."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def pad(num_bytes: int) -> bytes:
    """Returns the padding after ``num_bytes`` bytes."""
    return bytes(padded(num_bytes) - num_bytes)


def parse_header(data: Buffer, *, shard: str | None = None) -> None:
    """Checks the first 32 bytes of a shard, which only identify the file.

    Raises:
        FormatError: The bytes are not the header of a shard of this version.
    """
    head = bytes(data[:HEADER_BYTES])
    if head[: len(MAGIC)] != MAGIC:
        raise FormatError("not a shard: wrong magic bytes", shard=shard, expected=MAGIC, got=head[: len(MAGIC)])
    if head != HEADER:
        raise FormatError("the header is not that of this version", shard=shard, expected=HEADER, got=head)


# -- footer ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Footer:
    """The last 64 bytes of a shard, checked.

    Attributes:
        tail_start: Position at which the blocks begin; `ShardIndex.parse` takes all bytes from there.
        descriptor_start: Position of the descriptor in the file.
        descriptor_bytes: Length of the descriptor without padding.
        descriptor_digest: xxh3_64 of the descriptor with padding.
        num_samples: Number of samples in the shard.
        size: Size of the file in bytes.
        version: 1, or 2 for a virtual shard, or 3 for a shard with nulls.
    """

    tail_start: int
    descriptor_start: int
    descriptor_bytes: int
    descriptor_digest: int
    num_samples: int
    size: int
    version: int = VERSION


def encode_footer(footer: Footer) -> bytes:
    """Returns the 64 bytes of a footer."""
    signed = _FOOTER.pack(
        footer.tail_start,
        footer.descriptor_start,
        footer.descriptor_bytes,
        footer.version,
        0,
        footer.descriptor_digest,
        footer.num_samples,
        footer.size,
    )
    return signed + _U64.pack(xxhash.xxh3_64_intdigest(signed)) + END_MAGIC


def parse_footer(data: Buffer, *, size: int, shard: str | None = None) -> Footer:
    """Checks and parses a footer.

    Args:
        data: Last 64 bytes of the shard.
        size: Size of the whole file, from the store or the manifest.
        shard: Name of the shard for errors.

    Raises:
        FormatError: The file is not a shard, is truncated, has another version, or its numbers are impossible.
        DigestMismatch: The footer is damaged.
    """
    data = bytes(data)
    if len(data) != FOOTER_BYTES or data[-len(END_MAGIC) :] != END_MAGIC:
        raise FormatError(
            "not a shard, or truncated: no end magic", shard=shard, expected=END_MAGIC, got=data[-len(END_MAGIC) :]
        )
    (digest,) = _U64.unpack_from(data, _SIGNED_FOOTER_BYTES)
    check_digest(data[:_SIGNED_FOOTER_BYTES], digest, "the footer's digest disagrees", shard=shard)
    tail_start, start, num_bytes, version, reserved, descriptor_digest, num_samples, file_size = _FOOTER.unpack_from(
        data
    )
    if version not in (VERSION, VIRTUAL_VERSION, NULLS_VERSION) or reserved != 0:
        raise FormatError(
            "the shard has a version that this library does not know; upgrade concurrent-loader",
            shard=shard,
            expected=NULLS_VERSION,
            got=version,
        )
    if file_size != size:
        raise FormatError(
            "the shard does not have the length that its footer states", shard=shard, expected=file_size, got=size
        )
    sound = (
        HEADER_BYTES <= tail_start <= start <= size - FOOTER_BYTES
        and tail_start % _ALIGNMENT == start % _ALIGNMENT == 0
        and num_bytes <= MAX_DESCRIPTOR_BYTES
        and start + padded(num_bytes) == size - FOOTER_BYTES
        and num_samples <= size  # every sample takes at least one byte in some block
    )
    if not sound:
        raise FormatError(
            "the footer's numbers are impossible", shard=shard, got=(tail_start, start, num_bytes, num_samples, size)
        )
    return Footer(tail_start, start, num_bytes, descriptor_digest, num_samples, size, version)


# -- descriptor --------------------------------------------------------------------------------------------------------

_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_HexDigest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$", max_length=16)]


class _ColumnRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: Annotated[str, msgspec.Meta(max_length=64)]
    type: Annotated[str, msgspec.Meta(max_length=512)]
    encoding: Annotated[str, msgspec.Meta(max_length=64)] = ""


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
    blocks: Annotated[list[_BlockRecord], msgspec.Meta(max_length=3 * MAX_COLUMNS + 3)]


_DECODER = msgspec.json.Decoder(_DescriptorRecord)


@dataclass(frozen=True, slots=True)
class Block:
    """One entry of the block table.

    Attributes:
        kind: ``fixed``, ``small``, ``dictionary`` or ``validity`` for one column; ``payload_ends`` or
            ``payload_digests`` for all, and ``payload_starts`` in a virtual shard.
        column: Name of the column; empty for blocks of all columns.
        codec: ``raw`` or ``zstd``.
        start: Position of the block in the file.
        length: Length of the block without padding.
        digest: xxh3_64 of the block with padding.
    """

    kind: str
    column: str
    codec: str
    start: int
    length: int
    digest: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The self-description of a shard: its columns, number of samples and blocks, in order."""

    schema: Schema
    num_samples: int
    blocks: tuple[Block, ...]

    def block(self, kind: str, column: str = "") -> Block | None:
        """Returns the block of a kind and a column, or None."""
        return next((block for block in self.blocks if block.kind == kind and block.column == column), None)


def encode_descriptor(schema: Schema, num_samples: int, blocks: Sequence[Block]) -> bytes:
    """Returns the JSON text of a descriptor, without padding."""
    return msgspec.json.encode(
        _DescriptorRecord(
            num_samples=num_samples,
            columns=[_ColumnRecord(column.name, column.type, column.encoding) for column in schema],
            blocks=[
                _BlockRecord(block.kind, block.column, block.codec, block.start, block.length, f"{block.digest:016x}")
                for block in blocks
            ],
        )
    )


def parse_descriptor(data: Buffer, footer: Footer, *, shard: str | None = None) -> Descriptor:
    """Checks and parses the descriptor: its blocks must be known, complete, and fill the tail without overlap.

    Args:
        data: Descriptor with padding; its digest is already checked.
        footer: Footer of the same shard.
        shard: Name of the shard for errors.

    Raises:
        FormatError: No writer of this version writes such a descriptor.
    """
    text, zeros = data[: footer.descriptor_bytes], data[footer.descriptor_bytes :]
    try:
        record = _DECODER.decode(text)
        schema = Schema(tuple(Column(column.name, column.type, column.encoding) for column in record.columns))
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
    is_virtual = footer.version == VIRTUAL_VERSION
    if not is_virtual and any(column.encoding for column in schema):
        raise FormatError("only a virtual shard may have values in another encoding", shard=shard)
    if any(column.optional for column in schema) != (footer.version == NULLS_VERSION):
        raise FormatError("optional columns are for shards of version 3 only", shard=shard, got=footer.version)
    _check_completeness(schema, blocks, shard, is_virtual=is_virtual)
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


def _check_completeness(schema: Schema, blocks: Sequence[Block], shard: str | None, *, is_virtual: bool) -> None:
    codecs = {(block.kind, block.column): block.codec for block in blocks}
    if len(codecs) != len(blocks):
        raise FormatError("a block occurs twice", shard=shard)
    required: dict[tuple[str, str], tuple[str, ...]] = {("fixed", column.name): ("raw",) for column in schema.fixed}
    required |= {("small", column.name): ("raw", "zstd") for column in schema.small}
    required |= {("validity", column.name): ("raw",) for column in schema if column.optional}
    if schema.payload:
        required |= {("payload_ends", ""): ("raw",)}
        if is_virtual:
            required[("payload_starts", "")] = ("raw",)
        if not is_virtual or ("payload_digests", "") in codecs:  # only data adopted by its headers has no digests
            required[("payload_digests", "")] = ("raw",)
    # A dictionary is optional, but it never occurs without frames that need it.
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
        DigestMismatch: The digests differ.
    """
    got = xxhash.xxh3_64_intdigest(data)
    if got != expected:
        raise DigestMismatch(
            what, shard=shard, sample=sample, column=column, expected=f"{expected:016x}", got=f"{got:016x}"
        )
