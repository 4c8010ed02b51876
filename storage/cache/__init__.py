"""Shards on the local drive, shared by threads, processes and ranks."""

from storage.cache.open_shard import FileShard, MemoryShard, OpenShard
from storage.cache.shard_cache import CacheStats, DiskShardCache, MemoryShardCache, ShardCache

__all__ = ["CacheStats", "DiskShardCache", "FileShard", "MemoryShard", "MemoryShardCache", "OpenShard", "ShardCache"]
