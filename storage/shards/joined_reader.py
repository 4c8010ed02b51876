"""Random access to a snapshot whose columns are stored in several files, because some were added later."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.cache.shard_cache import ShardCache
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.reader import DatasetReader

__all__ = ["JoinedReader", "open_reader"]


class JoinedReader(DatasetReader):
    """Random access to one snapshot; only files of the columns that are asked for are fetched.

    Args:
        manifest: Snapshot to read.
        engine: Engine over the dataset's store.
        cache: Cache of shards and of parts of shards.

    Attributes:
        parts: Reader of the shards, then one of each column set.

    Usable from one event loop, by any number of tasks.
    """

    def __init__(self, manifest: Manifest, engine: FetchEngine, cache: ShardCache) -> None:
        super().__init__(manifest, engine, cache)
        self.parts = tuple(DatasetReader(part, engine, cache) for part in manifest.parts)

    def place(self, column: str) -> tuple[DatasetReader, str]:
        """Returns the reader of the files that store a column, and the column's name there."""
        place = self.manifest.place_of(column)
        return self.parts[place.part], place.name

    async def read(self, sample: int, columns: Sequence[str] | None = None) -> dict[str, object]:
        """Reads one sample; see `DatasetReader.read`. Each file takes its own requests, at the same time."""
        names = self.check_columns(columns)
        self.locate(sample)
        stored: dict[int, dict[str, str]] = {}
        for name in names:
            place = self.manifest.place_of(name)
            stored.setdefault(place.part, {})[place.name] = name

        async def read_part(number: int) -> dict[str, object]:
            values = await self.parts[number].read(sample, list(stored[number]))
            return {stored[number][name]: value for name, value in values.items()}

        found: dict[str, object] = {}
        for values in await map_concurrently(read_part, list(stored)):
            found |= values
        return {name: found[name] for name in names}

    async def column(
        self, name: str, samples: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.generic] | list[object]:
        """Reads one column; see `DatasetReader.column`."""
        self.check_columns([name])
        part, stored = self.place(name)
        return await part.column(stored, samples)

    async def lengths(
        self, name: str, samples: npt.NDArray[np.int64] | None = None, *, exact: bool = False
    ) -> npt.NDArray[np.int64]:
        """Returns the lengths of a column's values; see `DatasetReader.lengths`."""
        self.check_columns([name])
        part, stored = self.place(name)
        return await part.lengths(stored, samples, exact=exact)


def open_reader(manifest: Manifest, engine: FetchEngine, cache: ShardCache) -> DatasetReader:
    """Returns the reader of a snapshot."""
    return (JoinedReader if manifest.places else DatasetReader)(manifest, engine, cache)
