"""A dataset in memory whose objects can be made older."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

from concurrent_loader.storage import ShardWriter, Store
from concurrent_loader.storage.stores import MemoryStore

__all__ = ["age", "keys", "memory_store", "write"]


def memory_store() -> MemoryStore:
    """An empty store of its own."""
    return MemoryStore(f"memory://{uuid4()}")


def write(store: Store, numbers: range, **options: bool) -> None:
    """Writes a snapshot of small shards with four samples each."""
    with ShardWriter(store, columns={"x": "int64", "data": "bytes"}, shard_size=6000, **options) as writer:
        for number in numbers:
            writer.write({"x": number, "data": bytes([number % 256]) * 1000})


def age(store: MemoryStore, prefix: str = "", **by: float) -> None:
    """Makes all objects, or those with a prefix, older by a timedelta's arguments."""
    for key, found in list(store._bucket.items()):
        if key.startswith(store._location.full_key(prefix)):
            store._bucket[key] = replace(found, last_modified=found.last_modified - timedelta(**by))


async def keys(store: Store, prefix: str = "") -> set[str]:
    """Keys of all objects with a prefix."""
    return {meta.key async for meta in store.list(prefix)}
