"""Ray Data's interfaces to datasets: a sink and a source. Needs the extra ``ray``."""

from __future__ import annotations

from concurrent_loader.storage.ray.shard_sink import ShardSink
from concurrent_loader.storage.ray.shard_source import ShardSource

__all__ = ["ShardSink", "ShardSource"]
