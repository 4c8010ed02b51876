"""The bytes of a manifest's file: header and JSON body, as msgspec structs; docs/reference/format.md ("Manifest")
specifies them.

Only types and digests are checked here. `concurrent_loader.storage.shards.manifest.manifest_file` adds the checks of
what a manifest says.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import xxhash

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.manifest.column_sets import ColumnPlace, ColumnSet
from concurrent_loader.storage.shards.manifest.deleted_rows import DeletedRows
from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardTable
from concurrent_loader.storage.shards.manifest.source_ranges import SourceFile, SourceRanges
from concurrent_loader.storage.stores.objects import Buffer

__all__ = [
    "FEATURES",
    "FEATURE_VERSION",
    "FORMAT_VERSION",
    "MAX_MANIFEST_BYTES",
    "MAX_SNAPSHOT",
    "VIRTUAL_VERSION",
    "ManifestBody",
    "ManifestFields",
    "bundle_entry",
    "decode_body",
    "encode_unchecked",
    "parse_column_sets",
    "parse_shards",
    "parse_sources",
    "required_features",
]

MAGIC = b"CLMANIF\n"
FORMAT_VERSION = 1
VIRTUAL_VERSION = 2
"""Version of a manifest that has virtual shards and no features; one without both can be read by the first release."""
FEATURE_VERSION = 3
"""Version of a manifest that lists the features a reader must know, in ``requires``."""
MAX_MANIFEST_BYTES = 256 * 1024 * 1024
MAX_SNAPSHOT = 9_999_999_999

_HEADER = struct.Struct("<8sIIQQ")  # magic, version, flags, bytes of the body, xxh3_64 of the body


class ManifestFields(Protocol):
    """The part of a `Manifest` that goes into its file."""

    @property
    def snapshot(self) -> int: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def schema(self) -> dict[str, str]: ...
    @property
    def table(self) -> ShardTable: ...
    @property
    def bundles(self) -> tuple[BundleEntry, ...]: ...
    @property
    def statistics(self) -> dict[str, dict[str, int | float | None]]: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def deleted(self) -> DeletedRows | None: ...
    @property
    def column_sets(self) -> tuple[ColumnSet, ...]: ...
    @property
    def places(self) -> dict[str, ColumnPlace]: ...


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]  # the integers that every JSON parser keeps exactly
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z", max_length=32)]
_Chunks = Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{16})*\Z")]
_Key = Annotated[str, msgspec.Meta(max_length=1024)]


class _ShardBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    key: _Key
    size: _Count
    num_samples: _Count
    tail_start: _Count
    digest: str  # `ShardTable` checks all digests at once: a pattern here doubled the time to parse
    chunk_digests: str
    payload_bytes: _Count


class BundleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bundle of FIXED columns."""

    key: _Key
    size: _Count
    tail_start: _Count
    digest: _Digest
    chunk_digests: _Chunks
    first_sample: _Count
    num_samples: _Count


class ColumnBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column of the schema."""

    name: str
    type: str


class _SourceFileBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    url: Annotated[int, msgspec.Meta(ge=0)]  # number in the list of URLs
    key: _Key
    size: _Count
    etag: Annotated[str, msgspec.Meta(max_length=1024)] | None
    transform: Annotated[str, msgspec.Meta(max_length=8192)]  # names all payload columns of a Parquet file


class SourcesBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The places of virtual shards."""

    urls: list[Annotated[str, msgspec.Meta(max_length=4096)]]
    files: list[_SourceFileBody]
    tails: list[_Key]
    rows: bytes  # base64 of little-endian int64[n, 5]; see `SourceRanges`


class ColumnSetBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shards and bundles of columns that were added."""

    shards: msgspec.Raw  # a list of _ShardBody
    bundles: list[BundleBody]


class PlaceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one column is stored."""

    part: Annotated[int, msgspec.Meta(ge=0, le=256)]
    name: str


class ManifestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON body; see "Manifest" in docs/reference/format.md."""

    snapshot: Annotated[int, msgspec.Meta(ge=1, le=MAX_SNAPSHOT)]
    parent: _Digest | None
    num_samples: _Count
    num_bytes: _Count
    columns: Annotated[list[ColumnBody], msgspec.Meta(max_length=256)]  # a list: JSON objects have no order
    shards: msgspec.Raw  # a list of _ShardBody
    bundles: list[BundleBody]
    statistics: dict[str, dict[str, int | float | None]]
    metadata: dict[str, Any]
    sources: SourcesBody | None = None
    deleted_rows: bytes | None = None  # base64 of varints; see `DeletedRows.tobytes`
    column_sets: Annotated[list[ColumnSetBody], msgspec.Meta(max_length=255)] = []
    places: Annotated[list[PlaceBody], msgspec.Meta(max_length=256)] = []
    requires: list[str] = []


class _Requires(msgspec.Struct, frozen=True):
    """The one field of the body that a reader of an older release understands."""

    requires: Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(min_length=1, max_length=64)]


FEATURES: dict[str, Callable[[ManifestFields], bool]] = {
    "deleted-rows": lambda fields: fields.deleted is not None,
    "optional-columns": lambda fields: any(kind.endswith("?") for kind in fields.schema.values()),
    "column-sets": lambda fields: bool(fields.places or fields.column_sets),
    "no-payload-digests": lambda fields: bool((fields.table.num_chunks == 0).any()),
}
"""Features by name: whether a manifest needs it. A reader that does not know a feature must refuse the manifest."""

_ENCODER = msgspec.json.Encoder(order="deterministic")
_DECODER = msgspec.json.Decoder(ManifestBody)
_REQUIRES_DECODER = msgspec.json.Decoder(_Requires)
_SHARDS_DECODER = msgspec.json.Decoder(list[_ShardBody])
_PIECE_BYTES = 256 * 1024  # of the list of shards: small enough that the parsed entries stay in the processor's cache


def encode_unchecked(fields: ManifestFields) -> bytes:
    """Returns the file of a manifest; equal manifests give equal bytes.

    Raises:
        FormatError: The file would be larger than 256 MiB.
    """
    requires = required_features(fields)
    body = _ENCODER.encode(
        ManifestBody(
            snapshot=fields.snapshot,
            parent=fields.parent,
            num_samples=fields.num_samples,
            num_bytes=fields.num_bytes,
            columns=[ColumnBody(name, kind) for name, kind in fields.schema.items()],
            shards=msgspec.Raw(_ENCODER.encode(_shard_bodies(fields.table))),
            bundles=[_bundle_body(entry) for entry in fields.bundles],
            statistics=fields.statistics,
            metadata=fields.metadata,
            sources=None if fields.table.ranges is None else _sources_body(fields.table.ranges),
            deleted_rows=None if fields.deleted is None else fields.deleted.tobytes(),
            column_sets=[
                ColumnSetBody(
                    shards=msgspec.Raw(_ENCODER.encode(_shard_bodies(each.table))),
                    bundles=[_bundle_body(entry) for entry in each.bundles],
                )
                for each in fields.column_sets
            ],
            places=[PlaceBody(place.part, place.name) for place in fields.places.values()],
            requires=requires,
        )
    )
    version = FEATURE_VERSION if requires else FORMAT_VERSION if fields.table.ranges is None else VIRTUAL_VERSION
    if _HEADER.size + len(body) > MAX_MANIFEST_BYTES:
        raise FormatError("the manifest is too large; write larger shards", expected=MAX_MANIFEST_BYTES, got=len(body))
    return _HEADER.pack(MAGIC, version, 0, len(body), xxhash.xxh3_64_intdigest(body)) + body


def decode_body(data: Buffer, *, url: str | None) -> ManifestBody:
    """Parses the file of a manifest after comparing its digest; the list of shards stays raw JSON.

    Raises:
        FormatError: The bytes are no manifest, are damaged, or are of a later version.
        msgspec.MsgspecError: A field is missing, unknown or of another type.
    """
    version, text = _checked_body(memoryview(data).cast("B"), url)
    if version == FEATURE_VERSION:
        _check_features(text, url)  # before the fields that an unknown feature may add
    body = _DECODER.decode(text)
    if version != FEATURE_VERSION and body.requires:
        raise FormatError("only version 3 of a manifest lists what a reader must know", url=url, got=version)
    if version != FEATURE_VERSION and (version == VIRTUAL_VERSION) != (body.sources is not None):
        raise FormatError("version 2 of a manifest is for virtual shards only", url=url, got=version)
    return body


def required_features(fields: ManifestFields) -> list[str]:
    """Returns the names of the features that a reader of the manifest must know, sorted."""
    return [name for name, needed in sorted(FEATURES.items()) if needed(fields)]


def _check_features(text: memoryview, url: str | None) -> None:
    unknown = set(_REQUIRES_DECODER.decode(text).requires) - FEATURES.keys()
    if unknown:
        names = ", ".join(map(repr, sorted(unknown)))
        raise FormatError(
            f"this library does not know what the dataset needs, {names}; upgrade concurrent-loader", url=url
        )


def _checked_body(data: memoryview, url: str | None) -> tuple[int, memoryview]:
    if len(data) < _HEADER.size:
        raise FormatError("the manifest is cut off", url=url, expected=_HEADER.size, got=len(data))
    magic, version, flags, num_bytes, digest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise FormatError("not a manifest", url=url, expected=MAGIC, got=magic)
    if version not in (FORMAT_VERSION, VIRTUAL_VERSION, FEATURE_VERSION) or flags:
        raise FormatError(
            "the manifest has a version that this library does not know; upgrade concurrent-loader", url=url,
            expected=(FEATURE_VERSION, 0), got=(version, flags),
        )  # fmt: skip
    body = data[_HEADER.size :]
    if len(body) != num_bytes:
        raise FormatError(
            "the manifest's body does not have the length that its header states",
            url=url,
            expected=num_bytes,
            got=len(body),
        )
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise FormatError("the manifest's digest disagrees with its bytes", url=url, expected=f"{digest:016x}")
    return version, body


def _shard_bodies(table: ShardTable) -> list[_ShardBody]:
    counts = (table.sizes.tolist(), table.num_samples.tolist(), table.tail_starts.tolist())
    payload_bytes = table.payload_bytes.tolist()
    return list(map(_ShardBody, table.keys, *counts, table.digests, table.chunk_digests, payload_bytes))


def _sources_body(ranges: SourceRanges) -> SourcesBody:
    urls = {url: number for number, url in enumerate(dict.fromkeys(file.url for file in ranges.files))}
    return SourcesBody(
        urls=list(urls),
        files=[
            _SourceFileBody(urls[each.url], each.key, each.size, each.etag, each.transform) for each in ranges.files
        ],
        tails=list(ranges.tail_keys),
        rows=ranges.rows.astype("<i8", copy=False).tobytes(),
    )


def parse_sources(body: SourcesBody | None) -> SourceRanges | None:
    """Returns the places of virtual shards as they were parsed.

    Raises:
        FormatError: A number does not exist, or the rows are cut off.
    """
    if body is None:
        return None
    if len(body.rows) % 40 or any(each.url >= len(body.urls) for each in body.files):
        raise FormatError("the places of virtual shards are cut off")
    files = [
        SourceFile(url=body.urls[each.url], key=each.key, size=each.size, etag=each.etag, transform=each.transform)
        for each in body.files
    ]
    return SourceRanges(files, body.tails, np.frombuffer(body.rows, "<i8").reshape(-1, 5))


def parse_shards(text: memoryview, ranges: SourceRanges | None = None) -> ShardTable:
    """Parses the list of shards piece by piece, so that only the table of all shards is ever in memory.

    The text is cut between what looks like two entries. A cut inside a string leaves a piece that is not JSON, because
    its last string does not end. Then the whole list is parsed at once.

    Raises:
        msgspec.MsgspecError: The text is not a list of shards.
        FormatError: A digest is not hexadecimal or has the wrong length.
    """
    try:
        return ShardTable.joined([_parse_piece(piece) for piece in _pieces(text)], ranges)
    except msgspec.MsgspecError:
        return ShardTable.joined([_parse_piece(text)], ranges)


def parse_column_sets(bodies: list[ColumnSetBody]) -> tuple[ColumnSet, ...]:
    """Returns the column sets as they were parsed; raises like `parse_shards`."""
    return tuple(
        ColumnSet(shards=parse_shards(memoryview(body.shards)), bundles=tuple(map(bundle_entry, body.bundles)))
        for body in bodies
    )


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
            length *= 2  # one entry with many chunk digests
    yield b"[" + text[start:]


def _parse_piece(text: Buffer) -> ShardTable:
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


def _bundle_body(entry: BundleEntry) -> BundleBody:
    values = {name: getattr(entry, name) for name in BundleBody.__struct_fields__}
    return BundleBody(**{**values, "chunk_digests": "".join(f"{digest:016x}" for digest in entry.chunk_digests)})


def bundle_entry(body: BundleBody) -> BundleEntry:
    """Returns the entry for a bundle as it was parsed."""
    text = body.chunk_digests
    digests = tuple(int(text[start : start + 16], 16) for start in range(0, len(text), 16))
    return BundleEntry(**{**msgspec.structs.asdict(body), "chunk_digests": digests})
