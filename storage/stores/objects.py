"""Keys, metadata and bytes of objects, as stores accept and return them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from concurrent_loader.storage.errors import ConfigurationError, ObjectChanged

__all__ = ["Buffer", "GetResult", "ObjectMeta", "check_etag", "check_key", "quoted_etag"]

# Contiguous bytes with the buffer protocol. (collections.abc.Buffer of PEP 688 needs Python 3.12.)
Buffer = bytes | bytearray | memoryview

_MAX_KEY_BYTES = 1024  # S3's limit


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """Metadata of an object.

    Attributes:
        key: Key relative to the store's root.
        size: Size of the object in bytes.
        etag: Opaque version of the bytes, which changes whenever the bytes change. None if the backend has none.
        last_modified: Time of the last write, with a time zone. None if unknown.

    Example:
        >>> from concurrent_loader.storage import ObjectMeta
        >>> meta = ObjectMeta("cat/0.jpg", size=2048, etag='"1"')
        >>> meta.key, meta.size
        ('cat/0.jpg', 2048)
    """

    key: str
    size: int
    etag: str | None = None
    last_modified: datetime | None = None


@dataclass(frozen=True, slots=True)
class GetResult:
    """Bytes of an object, or of a range of it.

    Attributes:
        data: Contiguous bytes of exactly the requested length. Treat the view as read-only.
        meta: Metadata of the whole object: ``meta.size`` is the object's size, not the range's.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import open_store
        >>> async def read_range():
        ...     async with open_store("memory://get-result-example") as store:
        ...         await store.put("letters", b"abcdef")
        ...         return await store.get_range("letters", 1, 4)
        >>> result = asyncio.run(read_range())
        >>> bytes(result.data), result.meta.size
        (b'bcd', 6)
    """

    data: memoryview
    meta: ObjectMeta


def check_key(key: str, *, url: str | None = None) -> str:
    """Returns the key if every backend can hold it.

    Raises:
        ConfigurationError: The key is empty, longer than 1,024 bytes or not encodable as UTF-8. Or it has a leading or
            trailing slash, an empty, ``.`` or ``..`` segment, or a control character.
    """
    if _is_plain(key):
        return key
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError("a key must be valid Unicode", url=url, key=repr(key)) from error
    if not 0 < size <= _MAX_KEY_BYTES:
        raise ConfigurationError("a key must have 1 to 1024 bytes", url=url, key=key[:80], got=size)
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise ConfigurationError("a key must have no empty, '.' or '..' segment", url=url, key=key)
    if re.search(r"[\x00-\x1f\x7f]", key):
        raise ConfigurationError("a key must have no control characters", url=url, key=key)
    return key


def _is_plain(key: str) -> bool:
    """Returns whether a key is plainly valid, as nearly all are, which spares the full check."""
    return (
        key.isascii()
        and key.isprintable()
        and 0 < len(key) <= _MAX_KEY_BYTES
        and not key.startswith(("/", "."))
        and not key.endswith("/")
        and "//" not in key
        and "/." not in key
    )


def check_etag(meta: ObjectMeta, if_match: str | None, *, url: str) -> None:
    """Compares an object with the ETag that its reader expects, for backends without conditional reads.

    Raises:
        ObjectChanged: The object has a different ETag.
    """
    if if_match is not None and meta.etag is not None and meta.etag != if_match:
        raise ObjectChanged("the object has changed", url=url, key=meta.key, expected=if_match, got=meta.etag)


def quoted_etag(etag: str | None) -> str | None:
    """Returns an ETag as in a header: Azure lists it without quotes."""
    return etag if not etag or etag.startswith(('"', 'W/"')) else f'"{etag}"'
