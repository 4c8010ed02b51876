"""The immutable snapshot of a data set: which shards, pinned by size and digest; and its file.

`storage.shards.snapshots` puts it into the store and reads it from there; docs/format.md ("Manifest") has the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import msgspec
import xxhash

from storage.errors import ConfigurationError, FormatError
from storage.shards.manifest_rules import check_manifest
from storage.shards.shard_table import ShardEntry, ShardTable, shard_key
from storage.stores.protocol import Buffer

__all__ = [
    "BundleEntry",
    "Manifest",
    "ShardEntry",
    "bundle_key",
    "decode",
    "encode",
    "manifest_key",
    "shard_key",
]

MAGIC = b"CLMANIF\n"
FORMAT_VERSION = 1
MAX_MANIFEST_BYTES = 256 * 1024 * 1024
MAX_SNAPSHOT = 9_999_999_999

_HEADER = struct.Struct("<8sIIQQ")  # magic, version, flags, bytes of the body, xxh3_64 of the body


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleEntry:
    """A shard file that repeats the FIXED columns of a run of samples, so that all labels are a few range GETs.

    Attributes:
        key: Below the dataset's URL.
        size: Of the whole file, in bytes.
        tail_start: As for a shard; there is no payload before it.
        digest: xxh3_128 of the file, 32 hex digits.
        chunk_digests: xxh3_64 of every piece of the 8 MiB grid.
        first_sample: Of the run, counted through the dataset.
        num_samples: Of the run.
    """

    key: str
    size: int
    tail_start: int
    digest: str
    chunk_digests: tuple[int, ...]
    first_sample: int
    num_samples: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """An immutable snapshot of a data set.

    Attributes:
        snapshot: 1 for the first, then one more with each commit.
        schema: Column name → type, in the columns' order.
        shards: In the order of the samples; a `ShardTable` where it was read, or a tuple.
        bundles: By first sample; they do not overlap and need not cover every sample.
        statistics: Column name → facts about its values (`storage.shards.statistics`).
        metadata: Free-form JSON; an importer keeps class names under ``classes``.
        parent: Digest of the manifest that this one was made on top of; None for snapshot 1.
        format_version: Of the file.
    """

    snapshot: int
    schema: dict[str, str]
    shards: tuple[ShardEntry, ...] | ShardTable = ()
    bundles: tuple[BundleEntry, ...] = ()
    statistics: dict[str, dict[str, int | float | None]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    format_version: int = FORMAT_VERSION

    @cached_property
    def table(self) -> ShardTable:
        """The shards, a column a field: for whoever looks at all of them.

        Raises:
            FormatError: A digest that is none, or a number beyond 64 bits.
        """
        return ShardTable.of(self.shards)

    @cached_property
    def num_samples(self) -> int:
        """Of all shards."""
        return int(self.table.num_samples.sum())

    @cached_property
    def num_bytes(self) -> int:
        """Sum of the shards' sizes; bundles repeat what is in them and are not counted."""
        return int(self.table.sizes.sum())

    @cached_property
    def digest(self) -> str:
        """xxh3_128 of the manifest's file, 32 hex digits."""
        return xxhash.xxh3_128_hexdigest(encode(self))

    @property
    def fingerprint(self) -> int:
        """63 bits of the digest: names the snapshot in loader states and seeds."""
        return int(self.digest[:16], 16) >> 1


def bundle_key(digest: str) -> str:
    """Where a bundle of FIXED columns lies."""
    return f"columns/{digest}.cls"


def manifest_key(snapshot: int) -> str:
    """Where a snapshot's manifest lies.

    Raises:
        ConfigurationError: Not a snapshot's number.
    """
    if isinstance(snapshot, bool) or not isinstance(snapshot, int) or not 1 <= snapshot <= MAX_SNAPSHOT:
        raise ConfigurationError("a snapshot is an integer from 1", got=snapshot)
    return f"manifests/{snapshot:010d}.clm"


# -- the file ----------------------------------------------------------------------------------------------------------

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]  # what every JSON reader keeps exactly
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z", max_length=32)]
_Chunks = Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{16})*\Z")]
_Key = Annotated[str, msgspec.Meta(max_length=1024)]


class _ShardBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    key: _Key
    size: _Count
    num_samples: _Count
    tail_start: _Count
    digest: str  # these two the table checks, all at once: a pattern here took as long as all the rest
    chunk_digests: str
    payload_bytes: _Count


class _BundleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: _Key
    size: _Count
    tail_start: _Count
    digest: _Digest
    chunk_digests: _Chunks
    first_sample: _Count
    num_samples: _Count


class _ColumnBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    type: str


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    snapshot: Annotated[int, msgspec.Meta(ge=1, le=MAX_SNAPSHOT)]
    parent: _Digest | None
    num_samples: _Count
    num_bytes: _Count
    columns: Annotated[list[_ColumnBody], msgspec.Meta(max_length=256)]  # a list: JSON objects have no order
    shards: msgspec.Raw  # a list of _ShardBody
    bundles: list[_BundleBody]
    statistics: dict[str, dict[str, int | float | None]]
    metadata: dict[str, Any]


_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(_Body)
_SHARDS_DECODER = msgspec.json.Decoder(list[_ShardBody])
_PIECE_BYTES = 256 * 1024  # of the list of shards, read at once: what they become stays in the processor's cache


def encode(manifest: Manifest) -> bytes:
    """Returns the manifest's file; equal manifests give equal bytes.

    Raises:
        FormatError: It contradicts itself, or is larger than 256 MiB (use larger shards).
    """
    check_manifest(manifest)
    body = _ENCODER.encode(
        _Body(
            snapshot=manifest.snapshot,
            parent=manifest.parent,
            num_samples=manifest.num_samples,
            num_bytes=manifest.num_bytes,
            columns=[_ColumnBody(name, kind) for name, kind in manifest.schema.items()],
            shards=msgspec.Raw(_ENCODER.encode(_shard_bodies(manifest.table))),
            bundles=[_bundle_body(entry) for entry in manifest.bundles],
            statistics=manifest.statistics,
            metadata=manifest.metadata,
        )
    )
    if _HEADER.size + len(body) > MAX_MANIFEST_BYTES:
        raise FormatError("the manifest is too large; write larger shards", expected=MAX_MANIFEST_BYTES, got=len(body))
    return _HEADER.pack(MAGIC, FORMAT_VERSION, 0, len(body), xxhash.xxh3_64_intdigest(body)) + body


def decode(data: Buffer, *, url: str | None = None) -> Manifest:
    """Reads a manifest's file, believing nothing of it.

    Raises:
        FormatError: Not a manifest, damaged, of a later version, or contradicting itself.
    """
    body = _checked_body(memoryview(data).cast("B"), url)
    try:
        parsed = _DECODER.decode(body)
        shards = _shard_table(memoryview(parsed.shards))
    except FormatError as error:
        error.locate(url=url)
        raise
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"the manifest's body is not what the format says: {error}", url=url) from error
    schema = {column.name: column.type for column in parsed.columns}
    if len(schema) != len(parsed.columns):
        raise FormatError("the manifest names a column twice", url=url)
    manifest = Manifest(
        snapshot=parsed.snapshot,
        schema=schema,
        shards=shards,
        bundles=tuple(_bundle_entry(body) for body in parsed.bundles),
        statistics=parsed.statistics,
        metadata=parsed.metadata,
        parent=parsed.parent,
    )
    check_manifest(manifest, url=url)
    for name in ("num_samples", "num_bytes"):
        if getattr(parsed, name) != getattr(manifest, name):
            raise FormatError(
                f"{name} is not the sum over the shards", url=url,
                expected=getattr(manifest, name), got=getattr(parsed, name),
            )  # fmt: skip
    manifest.__dict__["digest"] = xxhash.xxh3_128_hexdigest(data)  # of the very bytes: another writer's JSON may differ
    return manifest


def _checked_body(data: memoryview, url: str | None) -> memoryview:
    if len(data) < _HEADER.size:
        raise FormatError("the manifest is cut off", url=url, expected=_HEADER.size, got=len(data))
    magic, version, flags, num_bytes, digest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise FormatError("not a manifest", url=url, expected=MAGIC, got=magic)
    if version != FORMAT_VERSION or flags:
        raise FormatError(
            "a manifest of a version that this library does not know; upgrade it", url=url,
            expected=(FORMAT_VERSION, 0), got=(version, flags),
        )  # fmt: skip
    body = data[_HEADER.size :]
    if len(body) != num_bytes:
        raise FormatError("the manifest is not as long as it says", url=url, expected=num_bytes, got=len(body))
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise FormatError("the manifest's digest disagrees with its bytes", url=url, expected=f"{digest:016x}")
    return body


def _shard_bodies(table: ShardTable) -> list[_ShardBody]:
    counts = (table.sizes.tolist(), table.num_samples.tolist(), table.tail_starts.tolist())
    payload_bytes = table.payload_bytes.tolist()
    return list(map(_ShardBody, table.keys, *counts, table.digests, table.chunk_digests, payload_bytes))


def _shard_table(text: memoryview) -> ShardTable:
    """Reads the list of shards piece by piece, so that only the columns of all of them are ever in memory.

    It is cut between what looks like two entries. Where that is within a string, what lies before the cut is no JSON,
    for its last string does not end; then the list is read as a whole.

    Raises:
        msgspec.MsgspecError: It is no list of shards.
        FormatError: A digest is none.
    """
    try:
        return ShardTable.joined([_few_shards(piece) for piece in _pieces(text)])
    except msgspec.MsgspecError:
        return _few_shards(text)


def _pieces(text: memoryview) -> Iterator[Buffer]:
    if bytes(text[:1]) != b"[":
        yield text
        return
    start, length = 1, _PIECE_BYTES
    while start + length < len(text):
        block = bytes(text[start : start + length])
        cut = block.rfind(b"},{") + 1
        if cut:
            yield b"[%b]" % block[:cut]
            start, length = start + cut + 1, _PIECE_BYTES
        else:
            length *= 2  # an entry of a shard of many chunks
    yield b"[" + text[start:]


def _few_shards(text: Buffer) -> ShardTable:
    bodies = _SHARDS_DECODER.decode(text)
    return ShardTable(
        keys=[body.key for body in bodies],
        sizes=[body.size for body in bodies],
        num_samples=[body.num_samples for body in bodies],
        tail_starts=[body.tail_start for body in bodies],
        payload_bytes=[body.payload_bytes for body in bodies],
        digests=[body.digest for body in bodies],
        chunk_digests=[body.chunk_digests for body in bodies],
    )


def _bundle_body(entry: BundleEntry) -> _BundleBody:
    values = {name: getattr(entry, name) for name in _BundleBody.__struct_fields__}
    return _BundleBody(**{**values, "chunk_digests": "".join(f"{digest:016x}" for digest in entry.chunk_digests)})


def _bundle_entry(body: _BundleBody) -> BundleEntry:
    text = body.chunk_digests
    digests = tuple(int(text[start : start + 16], 16) for start in range(0, len(text), 16))
    return BundleEntry(**{**msgspec.structs.asdict(body), "chunk_digests": digests})
