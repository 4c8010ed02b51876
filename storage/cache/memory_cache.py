"""The cache without a drive: shards live in memory while they are pinned."""

from __future__ import annotations

from concurrent_loader.storage.cache.open_shard import OpenShard
from concurrent_loader.storage.cache.shard_cache import ShardCache
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry

__all__ = ["MemoryShardCache"]


class MemoryShardCache(ShardCache):
    """Holds shards in memory while they are pinned, and stores nothing. The number of pins bounds the memory."""

    async def _load(self, entry: ShardEntry) -> OpenShard:
        self._counters.add(num_misses=1)
        return await self._fetch_into_memory(entry)
