"""Names of snapshots: small objects below ``tags/``, which protect their snapshots from garbage collection.

docs/reference/format.md ("Tags") specifies the object.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import msgspec

from concurrent_loader.storage.errors import AlreadyExists, ConfigurationError, FormatError, NotFound
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.scan_objects import list_metas
from concurrent_loader.storage.shards.manifest.manifest_body import MAX_SNAPSHOT
from concurrent_loader.storage.stores.objects import ObjectMeta

__all__ = ["TAGS", "check_tag_name", "delete_tag_object", "read_tag", "read_tags", "tag_key", "write_tag"]

TAGS = "tags/"

_NAME = re.compile(r"(?!\d+\Z)(?!\d{4}-\d\d-\d\d(?:T|\Z))[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_BYTES = 4096
_MAX_READS = 16  # tags read at once


class _TagBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=1, le=1)]
    snapshot: Annotated[int, msgspec.Meta(ge=1, le=MAX_SNAPSHOT)]


def check_tag_name(name: str) -> str:
    """Returns a valid name of a tag.

    Raises:
        ConfigurationError: The name is invalid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            "a tag must have 1 to 100 letters, digits, '.', '_' or '-', begin with a letter or digit, and not be a "
            "number or a date",
            got=name,
        )
    return name


def tag_key(name: str) -> str:
    """Returns the key of a tag's object.

    Raises:
        ConfigurationError: The name is invalid.
    """
    return f"{TAGS}{check_tag_name(name)}.json"


async def write_tag(engine: FetchEngine, name: str, snapshot: int, *, move: bool) -> None:
    """Writes a tag; the caller must have checked that the snapshot exists.

    Raises:
        AlreadyExists: The tag names another snapshot, and ``move`` is false.
        ConfigurationError: The name is invalid.
    """
    key = tag_key(name)
    data = msgspec.json.encode(_TagBody(1, snapshot))
    uploader = Uploader(store=engine.store, retry=engine.policy)
    if move:
        await uploader.put(key, data)
        return
    try:
        await uploader.put_once(key, data)
    except AlreadyExists as error:
        found = await read_tag(engine, name)
        if found == snapshot:
            return
        raise AlreadyExists(
            f"the tag {name!r} names snapshot {found}; pass move=True (--move) to move it",
            url=engine.store.url, key=key, expected=snapshot, got=found,
        ) from error  # fmt: skip


async def delete_tag_object(engine: FetchEngine, name: str) -> None:
    """Deletes a tag. A missing tag is no error."""
    key = tag_key(name)
    await engine.call_with_retries(lambda: engine.store.delete(key), key)


async def read_tag(engine: FetchEngine, name: str) -> int:
    """Returns the number of the snapshot that a tag names.

    Raises:
        NotFound: There is no such tag.
        FormatError: The tag's object is damaged.
        ConfigurationError: The name is invalid.
    """
    key = tag_key(name)

    def check(meta: ObjectMeta) -> None:
        if meta.size > _MAX_BYTES:
            raise FormatError(
                "the object is too large for a tag", url=engine.store.url, key=key, expected=_MAX_BYTES, got=meta.size
            )

    try:
        data = (await engine.fetch_object(key, accept=check)).data
    except NotFound as error:
        raise NotFound(
            f"no tag {name!r}; `concurrent-loader snapshots` lists the tags", url=engine.store.url, key=key
        ) from error
    try:
        return msgspec.json.decode(data, type=_TagBody).snapshot
    except msgspec.MsgspecError as error:
        raise FormatError(f"the tag does not follow the format: {error}", url=engine.store.url, key=key) from error


async def read_tags(engine: FetchEngine) -> dict[str, int]:
    """Returns the snapshots' numbers by tag, sorted by tag. Other objects below ``tags/`` are ignored."""
    limit = asyncio.Semaphore(_MAX_READS)

    async def read(name: str) -> int | None:
        async with limit:
            try:
                return await read_tag(engine, name)
            except NotFound:
                return None  # deleted after it was listed

    keys = [meta.key[len(TAGS) :] for meta in await list_metas(engine, TAGS)]
    names = sorted(key[:-5] for key in keys if key.endswith(".json") and _NAME.fullmatch(key[:-5]))
    found = await asyncio.gather(*map(read, names))
    return {name: snapshot for name, snapshot in zip(names, found, strict=True) if snapshot is not None}
