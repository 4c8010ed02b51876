"""Fetches clips of videos: of each, the groups of pictures that its sample needs, found in the index beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from concurrent_loader.datasets.protocol import GroupChooser
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.media import CLIP_INDEX_SUFFIX, ClipIndex, EncodedClip
from concurrent_loader.storage.shards.reader import DatasetReader

__all__ = ["ClipColumn", "clip_column"]


@dataclass(frozen=True, slots=True)
class ClipColumn:
    """The index of a column of videos, and what to fetch of them.

    Attributes:
        reader: Reader of the files that store the index.
        name: Name of the column of the index in these files.
        choose: Function that chooses the groups of pictures of a sample.
    """

    reader: DatasetReader
    name: str
    choose: GroupChooser

    async def fetch(
        self, reader: DatasetReader, shard: int, rows: npt.NDArray[np.int64], column: str
    ) -> dict[int, EncodedClip]:
        """Fetches and verifies the clips of some rows of a shard, or reads cached ones from the local drive.

        Args:
            reader: Reader of the files that store the videos.
            shard: Position of the shard in the manifest.
            rows: (n,) int64, rows of the samples in the shard.
            column: Name of the column of videos in these files.

        Raises:
            StorageError: A request failed, or bytes are damaged; the error names shard and sample.
        """
        entry = reader.entry(shard)
        spans, indexes = await reader.index(shard), await self.reader.index(shard)
        found: dict[int, EncodedClip] = {}

        async def fetch(row: int) -> None:
            sample = reader.live.sample(shard, row)
            try:
                span = spans.payload_range(row, column)
                index = ClipIndex.parse(indexes.value(self.name, row), span.end - span.start)
                first, last = self.choose(sample, index)
                start, end = index.span(first, last)

                def check(data: memoryview) -> bytes:
                    index.check(first, last, data)
                    return bytes(data)

                data = await reader.cache.read(entry, span.start + start, span.start + end, check)
            except StorageError as error:
                error.locate(shard=entry.key, sample=sample, column=column)
                raise
            found[row] = EncodedClip(index, first, last, start, data)

        await map_concurrently(fetch, rows.tolist())
        return found


def clip_column(reader: DatasetReader, column: str, choose: GroupChooser) -> ClipColumn | None:
    """Returns how to fetch the clips of a column; None if the dataset has no index of its videos."""
    index = column + CLIP_INDEX_SUFFIX
    if index not in reader.schema or reader.schema[index].type != "json":
        return None
    return ClipColumn(*reader.place(index), choose)
