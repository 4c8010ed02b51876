"""Lists the objects below a URL, and stores keys, sizes and ETags compactly in memory and in a file.

A listing takes a thousand requests per million objects, so it is cached in a file. The file is little-endian::

    magic 8s, version u32, flags u32, objects u64, raw bytes of the body u64, bytes of the question u64,
    xxh3_64 u64 of everything before and after it
    question    JSON: the listing's parameters; a file with other parameters is ignored
    body        one zstd frame of: sizes i64[n], ends of the keys i64[n], ends of the ETags i64[n], digests u64[n] if
                flags is 1, keys, ETags (UTF-8)
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from concurrent_loader.storage.errors import FormatError, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.scan_objects import scan_objects
from concurrent_loader.storage.stores.objects import Buffer, ObjectMeta
from concurrent_loader.storage.unfinished import create_unfinished, sweep_unfinished

__all__ = [
    "Listing",
    "ObjectEntry",
    "Texts",
    "decode_listing",
    "encode_listing",
    "list_objects",
    "load_listing",
    "save_listing",
]

_MAGIC = b"CLLISTN\n"
_VERSION = 1
_HAS_DIGESTS = 1  # the only flag
_FACTS = struct.Struct("<8sIIQQQ")
_HEADER_BYTES = _FACTS.size + 8
_MAX_TEXT_BYTES = 4096  # largest average length of key and ETag that a header may claim
_I64 = np.dtype("<i8")


@dataclass(frozen=True, eq=False)
class Texts:
    """Many short texts in one buffer.

    Attributes:
        data: Concatenated texts as UTF-8.
        ends: (n,) int64: end of each text in ``data``.
    """

    data: bytes
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, at: int) -> str:
        start = int(self.ends[at - 1]) if at else 0
        return self.data[start : int(self.ends[at])].decode()

    def tolist(self) -> list[str]:
        """Returns all texts."""
        starts = [0, *self.ends[:-1].tolist()]
        return [self.data[start:end].decode() for start, end in zip(starts, self.ends.tolist(), strict=False)]


@dataclass(frozen=True, eq=False)
class Listing:
    """Objects in the order of their keys' bytes.

    Attributes:
        keys: Keys relative to the store's URL.
        sizes: (n,) int64: sizes in bytes.
        etags: ETags; empty if the store has none.
        digests: (n,) uint64: xxh3_64 of the objects' bytes, 0 where unknown; None if none is known.
    """

    keys: Texts
    sizes: npt.NDArray[np.int64]
    etags: Texts
    digests: npt.NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def num_bytes(self) -> int:
        """Size of all objects in bytes."""
        return int(self.sizes.sum())

    @cached_property
    def fingerprint(self) -> int:
        """63 bits that identify keys, sizes and ETags of the listing."""
        hashed = xxhash.xxh3_64(len(self).to_bytes(8, "little"))
        for part in _parts(self):
            hashed.update(part)
        return hashed.intdigest() >> 1

    def entry(self, at: int, url: str) -> ObjectEntry:
        """Returns one object of the store with this URL."""
        content = 0 if self.digests is None else int(self.digests[at])
        return ObjectEntry(url, self.keys[at], int(self.sizes[at]), self.etags[at] or None, content or None)

    def with_digests_of(self, older: Listing) -> Listing:
        """Returns this listing with the digests of an older one, for the objects whose key, size and ETag are equal."""
        if older.digests is None:
            return self
        known = {
            facts: digest
            for *facts_, digest in zip(
                older.keys.tolist(), older.sizes.tolist(), older.etags.tolist(), older.digests.tolist(), strict=True
            )
            if (facts := tuple(facts_))[2]
        }
        found = zip(self.keys.tolist(), self.sizes.tolist(), self.etags.tolist(), strict=True)
        return replace(self, digests=np.array([known.get(facts, 0) for facts in found], np.uint64))


async def list_objects(
    engine: FetchEngine, wanted: Callable[[str], bool], problems: list[StorageError] | None = None
) -> Listing:
    """Lists the objects of a store.

    Only the time for the next page is limited, not the whole listing. A failed listing starts again.

    Args:
        engine: Engine whose store is listed, under its retry policy.
        wanted: Function that returns whether to include a key.
        problems: List that receives an error for each wanted entry that cannot be read under its name, and for each
            folder that cannot be listed. Without a list, the first error is raised.

    Raises:
        StorageError: It cannot be listed.
    """
    found = await scan_objects(engine, "", lambda: _ListingVisitor(wanted))
    if problems is not None:
        problems[:] = found.unusable
    elif found.unusable:
        raise found.unusable[0]
    return found.listing()


class _ListingVisitor:
    """Stores what a listing keeps of each object."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        self._keys, self._etags = bytearray(), bytearray()
        self._sizes, self._key_ends, self._etag_ends = array("q"), array("q"), array("q")
        self.unusable: list[StorageError] = []

    def add(self, meta: ObjectMeta) -> None:
        if not self._wanted(meta.key):
            return
        self._keys += meta.key.encode()
        self._etags += (meta.etag or "").encode()
        self._sizes.append(meta.size)
        self._key_ends.append(len(self._keys))
        self._etag_ends.append(len(self._etags))

    def refuse(self, error: StorageError) -> None:
        key = error.key or ""
        is_hidden = key.startswith(".") or "/." in key
        if self._wanted(key) or (key.endswith("/") and not is_hidden):
            self.unusable.append(error)

    def listing(self) -> Listing:
        sizes, key_ends, etag_ends = (
            np.array(part, np.int64) for part in (self._sizes, self._key_ends, self._etag_ends)
        )
        return Listing(Texts(bytes(self._keys), key_ends), sizes, Texts(bytes(self._etags), etag_ends))


# -- the file ----------------------------------------------------------------------------------------------------------


def encode_listing(listing: Listing, question: str) -> bytes:
    """Returns the bytes of a listing's file."""
    raw = b"".join(_parts(listing, with_digests=True))
    asked = question.encode()
    rest = asked + zstandard.ZstdCompressor(level=3).compress(raw)
    flags = 0 if listing.digests is None else _HAS_DIGESTS
    facts = _FACTS.pack(_MAGIC, _VERSION, flags, len(listing), len(raw), len(asked))
    return facts + _digest(facts, rest) + rest


def decode_listing(data: Buffer, question: str) -> Listing | None:
    """Parses a listing's file; nothing in it is trusted. Returns None if it answers another question.

    Raises:
        FormatError: The bytes are not a listing, or are damaged.
    """
    view = memoryview(data).cast("B")
    if len(view) < _HEADER_BYTES:
        raise FormatError("a listing is cut off", expected=_HEADER_BYTES, got=len(view))
    magic, version, flags, num_objects, raw_bytes, asked_bytes = _FACTS.unpack_from(view)
    facts, digest, rest = view[: _FACTS.size], view[_FACTS.size : _HEADER_BYTES], view[_HEADER_BYTES:]
    if (magic, version, flags | _HAS_DIGESTS) != (_MAGIC, _VERSION, _HAS_DIGESTS):
        raise FormatError("not a listing of this version", expected=(_MAGIC, _VERSION), got=(magic, version, flags))
    if _digest(facts, rest) != digest or asked_bytes > len(rest):
        raise FormatError("a listing's digest does not match its bytes")
    if bytes(rest[:asked_bytes]) != question.encode():
        return None
    num_arrays = 3 + flags
    fixed_bytes = num_arrays * _I64.itemsize * num_objects
    if not fixed_bytes <= raw_bytes <= fixed_bytes + _MAX_TEXT_BYTES * num_objects:
        raise FormatError("a listing's lengths contradict each other", got=(num_objects, raw_bytes))
    raw = _decompressed(rest[asked_bytes:], raw_bytes)
    arrays = np.frombuffer(raw, _I64, num_arrays * num_objects).reshape(num_arrays, num_objects).astype(np.int64)
    sizes, key_ends, etag_ends = arrays[:3]
    key_bytes = int(key_ends[-1]) if num_objects else 0
    texts = raw[fixed_bytes:]
    for ends, total in ((key_ends, key_bytes), (etag_ends, len(texts) - key_bytes)):
        rising = num_objects == 0 or (int(ends[0]) >= 0 and not bool((np.diff(ends) < 0).any()))
        if not rising or total != (int(ends[-1]) if num_objects else 0):
            raise FormatError("a listing's texts overlap")
    if num_objects and int(sizes.min()) < 0:
        raise FormatError("a listing has an object of negative size")
    try:
        texts.decode()
    except UnicodeDecodeError as error:
        raise FormatError("a listing's texts are not UTF-8") from error
    return Listing(
        Texts(texts[:key_bytes], key_ends),
        sizes,
        Texts(texts[key_bytes:], etag_ends),
        arrays[3].view(np.uint64) if flags else None,
    )


def _decompressed(frame: memoryview, raw_bytes: int) -> bytes:
    try:
        # zstandard ignores `max_output_size` if the frame declares its size, so that is checked first.
        if zstandard.get_frame_parameters(frame).content_size != raw_bytes:
            raise FormatError("a listing's frame does not have the length that its header states", expected=raw_bytes)
        raw = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError("a listing cannot be decompressed") from error
    if len(raw) != raw_bytes:
        raise FormatError(
            "a listing's frame does not have the length that its header states", expected=raw_bytes, got=len(raw)
        )
    return raw


def load_listing(path: str | os.PathLike[str], question: str) -> Listing | None:
    """Reads a listing's file; returns None if it is missing or answers another question.

    Raises:
        FormatError: The file is not a listing, or is damaged.
        OSError: The file cannot be read.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    return decode_listing(data, question)


def save_listing(path: str | os.PathLike[str], listing: Listing, question: str) -> None:
    """Writes a listing's file atomically.

    Raises:
        OSError: The file cannot be written.
    """
    target = Path(path)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep_unfinished(target.parent)
    file, incoming = create_unfinished(target.parent, mode=0o600)
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(encode_listing(listing, question))
        incoming.replace(target)
    finally:
        incoming.unlink(missing_ok=True)
        os.close(file)


def _digest(facts: Buffer, rest: Buffer) -> bytes:
    hashed = xxhash.xxh3_64(facts)
    hashed.update(rest)
    return hashed.intdigest().to_bytes(8, "little")


def _parts(listing: Listing, *, with_digests: bool = False) -> list[bytes]:
    arrays = [listing.sizes, listing.keys.ends, listing.etags.ends]
    if with_digests and listing.digests is not None:
        arrays.append(listing.digests.view(np.int64))
    return [*(part.astype(_I64).tobytes() for part in arrays), listing.keys.data, listing.etags.data]


@dataclass(frozen=True)
class ObjectEntry:
    """An object as it was listed.

    Attributes:
        url: URL of the store.
        key: Key relative to that URL.
        size: Size in bytes.
        etag: ETag, or None if the store has none.
        content: xxh3_64 of the object's bytes, or None if it is unknown.
    """

    url: str
    key: str
    size: int
    etag: str | None
    content: int | None = None

    @cached_property
    def digest(self) -> str:
        """32 hex digits that identify this version of the object."""
        facts = "\0".join((self.url, self.key, self.etag or "", str(self.size)))
        return xxhash.xxh3_128_hexdigest(facts.encode(errors="surrogatepass"))
