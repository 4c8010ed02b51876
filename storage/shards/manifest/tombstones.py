"""What is left of a snapshot that was purged: a small object, so that a reader learns why the snapshot is gone."""

from __future__ import annotations

from concurrent_loader.storage.errors import NotFound, SnapshotDeleted
from concurrent_loader.storage.fetch import FetchEngine

__all__ = ["COLLECTED", "PURGED", "check_not_purged", "tombstone_key", "was_deleted"]

PURGED = "purged/"
"""Folder of the tombstones, and of the plan of a purge that is under way."""

COLLECTED = "collected/"
"""Folder of the manifests that garbage collection has taken out of ``manifests/``, for a grace period."""


def tombstone_key(snapshot: int) -> str:
    """Returns the key of a snapshot's tombstone."""
    return f"{PURGED}{snapshot:010d}.json"


async def was_deleted(engine: FetchEngine, snapshot: int) -> bool:
    """Returns whether a snapshot without a manifest is known to have been collected as garbage, or purged.

    The manifest of a collected snapshot is kept for the grace period. Later nothing of it is left.
    """
    for key in (f"{COLLECTED}{snapshot:010d}.clm", tombstone_key(snapshot)):
        try:
            await engine.call_with_retries(lambda key=key: engine.store.head(key), key)  # type: ignore[misc]
        except NotFound:
            continue
        return True
    return False


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
