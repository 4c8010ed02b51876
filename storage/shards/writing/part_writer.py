"""Writes one part of a dataset: shards without a manifest. A later commit puts the parts together."""

from __future__ import annotations

from collections.abc import Mapping

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.writing.shard_sizing import ShardSplitter
from concurrent_loader.storage.shards.writing.upload_queue import UploadQueue
from concurrent_loader.storage.shards.writing.written_shards import DoneShard, finish_shard

__all__ = ["PartWriter"]


class PartWriter:
    """Cuts samples into shards and uploads them. A reader sees nothing of them before a commit.

    Args:
        schema: Columns of every sample.
        shard_bytes: Upper bound of a shard.
        queue: Uploads to the dataset's store; the caller closes it.

    Thread-safety: One thread at a time.
    """

    def __init__(self, schema: Schema, *, shard_bytes: int, queue: UploadQueue) -> None:
        self._schema = schema
        self._queue = queue
        self._splitter = ShardSplitter(schema, shard_bytes=shard_bytes)
        self._shards: list[DoneShard] = []
        self.num_samples = 0

    def write(self, sample: Mapping[str, object]) -> None:
        """Adds a sample.

        Raises:
            SchemaError: A value does not fit its column. The sample was not written, and the writer remains usable.
            StorageError: An upload failed in spite of retries.
        """
        self._queue.check()
        try:
            full = self._splitter.add(sample)
        except SchemaError as error:
            error.locate(sample=self.num_samples)
            raise
        self.num_samples += 1
        if full is not None:
            self._shards.append(finish_shard(full, self._queue.put))

    def finish(self) -> tuple[DoneShard, ...]:
        """Waits for the uploads, and returns the shards in order.

        Raises:
            StorageError: An upload failed in spite of retries.
        """
        rest = self._splitter.take_rest()
        if rest is not None:
            self._shards.append(finish_shard(rest, self._queue.put))
        self._queue.flush()
        return tuple(self._shards)
