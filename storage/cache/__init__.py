"""Shards on the local drive, shared by threads, processes and ranks."""

from concurrent_loader.storage.cache.disk_cache import DiskShardCache
from concurrent_loader.storage.cache.eviction import UseSchedule
from concurrent_loader.storage.cache.joined_shard import JoinedShard, JoinedShards, needed_parts, whole_shards
from concurrent_loader.storage.cache.local_files import InPlaceShards
from concurrent_loader.storage.cache.memory_cache import MemoryShardCache
from concurrent_loader.storage.cache.open_cache import open_shard_cache
from concurrent_loader.storage.cache.open_shard import FileShard, MemoryShard, OpenShard, read_payload, read_values
from concurrent_loader.storage.cache.shard_cache import ShardCache
from concurrent_loader.storage.cache.stats import CacheStats
from concurrent_loader.storage.listing import ObjectEntry

__all__ = [
    "CacheStats",
    "DiskShardCache",
    "FileShard",
    "InPlaceShards",
    "JoinedShard",
    "JoinedShards",
    "MemoryShard",
    "MemoryShardCache",
    "ObjectEntry",
    "OpenShard",
    "ShardCache",
    "UseSchedule",
    "needed_parts",
    "open_shard_cache",
    "read_payload",
    "read_values",
    "whole_shards",
]
