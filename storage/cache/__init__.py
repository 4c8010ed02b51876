"""Shards on the local drive, shared by threads, processes and ranks."""

from storage.cache.disk_cache import DiskShardCache
from storage.cache.in_place import InPlaceShards
from storage.cache.object_entry import ObjectEntry
from storage.cache.open_shard import FileShard, MemoryShard, OpenShard
from storage.cache.opening import open_shard_cache
from storage.cache.schedule import UseSchedule
from storage.cache.shard_cache import CacheStats, MemoryShardCache, ShardCache

__all__ = [
    "CacheStats",
    "DiskShardCache",
    "FileShard",
    "InPlaceShards",
    "MemoryShard",
    "MemoryShardCache",
    "ObjectEntry",
    "OpenShard",
    "ShardCache",
    "UseSchedule",
    "open_shard_cache",
]
