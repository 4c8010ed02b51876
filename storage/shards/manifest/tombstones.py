"""What is left of a snapshot that was purged: a small object, so that a reader learns why the snapshot is gone."""

from __future__ import annotations

from concurrent_loader.storage.errors import NotFound, SnapshotDeleted
from concurrent_loader.storage.fetch import FetchEngine

__all__ = ["PURGED", "check_not_purged", "tombstone_key"]

PURGED = "purged/"
"""Folder of the tombstones, and of the plan of a purge that is under way."""


def tombstone_key(snapshot: int) -> str:
    """Returns the key of a snapshot's tombstone."""
    return f"{PURGED}{snapshot:010d}.json"


async def check_not_purged(engine: FetchEngine, snapshot: int) -> None:
    """Checks that a snapshot without a manifest has no tombstone.

    Raises:
        SnapshotDeleted: It was purged.
    """
    key = tombstone_key(snapshot)
    try:
        await engine.call_with_retries(lambda: engine.store.head(key), key)
    except NotFound:
        return
    raise SnapshotDeleted(
        f"snapshot {snapshot} was purged, because it had samples whose bytes had to be removed; open the newest one",
        url=engine.store.url, key=key,
    )  # fmt: skip
