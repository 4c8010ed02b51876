"""Shows the files of a source to Zarr as one of its stores, read-only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from concurrent_loader.storage.importers.loop_calls import LoopCalls
from concurrent_loader.storage.importers.optional_library import import_library
from concurrent_loader.storage.importers.source_files import SourceFiles

__all__ = ["zarr_store"]


def zarr_store(files: SourceFiles, calls: LoopCalls) -> Any:
    """Returns a Zarr store of the files, each in the version that was listed.

    Raises:
        ConfigurationError: Zarr is not installed.
    """
    abc = import_library("zarr.abc.store", extra="zarr", package="zarr")
    by_key = {file.key: file for file in files.files}

    class SourceStore(abc.Store):  # type: ignore[misc, name-defined]
        """Zarr's interface; its coroutines run on Zarr's event loop, and requests on the importer's."""

        supports_writes = False
        supports_deletes = False
        supports_listing = True

        def __init__(self) -> None:
            super().__init__(read_only=True)

        def __eq__(self, other: object) -> bool:
            return self is other

        __hash__ = object.__hash__

        async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
            file = by_key.get(key)
            if file is None:
                return None
            start, end = _span(byte_range, file.size)
            future = calls.submit(files.engine.fetch(file.key, start, end, if_match=file.etag, object_size=file.size))
            result = await asyncio.wrap_future(future)
            return prototype.buffer.from_bytes(bytes(result.data))

        async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
            return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

        async def exists(self, key: str) -> bool:
            return key in by_key

        async def set(self, key: str, value: Any) -> None:
            raise NotImplementedError("the source is read-only")

        async def delete(self, key: str) -> None:
            raise NotImplementedError("the source is read-only")

        async def list(self) -> AsyncIterator[str]:
            for key in by_key:
                yield key

        async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
            for key in by_key:
                if key.startswith(prefix):
                    yield key

        async def list_dir(self, prefix: str) -> AsyncIterator[str]:
            start = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
            for name in dict.fromkeys(key[len(start) :].partition("/")[0] for key in by_key if key.startswith(start)):
                yield name

    return SourceStore()


def _span(byte_range: Any, size: int) -> tuple[int, int]:
    """Returns the bytes [start, end) of one of Zarr's requests."""
    if byte_range is None:
        return 0, size
    if hasattr(byte_range, "suffix"):
        return max(0, size - byte_range.suffix), size
    if hasattr(byte_range, "offset"):
        return min(byte_range.offset, size), size
    return min(byte_range.start, size), min(byte_range.end, size)
