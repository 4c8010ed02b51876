"""Writes shards again that are mostly deleted, in a new snapshot with the same samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.shards.editing.commit_edit import OpenDataset, commit_edit, open_to_edit
from concurrent_loader.storage.shards.editing.rewrite import RewriteProgress, Rewriter, live_shares
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.shard_fetcher import ShardFetcher
from concurrent_loader.storage.sizes import Size, parse_size

__all__ = ["CompactReport", "compact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """The result of a compaction.

    Attributes:
        url: URL of the dataset.
        snapshot: Newest snapshot, with the new shards.
        num_samples: Number of its samples, which are the same as before.
        num_rewritten: Number of shards that were written again; 0 if there was nothing to do.
        num_removed: Number of deleted rows that the new snapshot does not store any more.
        num_bytes_written: Size of the new shards and bundles in bytes.
        num_bytes_saved: Size of the shards of the snapshot before, minus the size of those of the new one, in bytes.

    Example:
        >>> from concurrent_loader.storage import compact
        >>> report = compact("photos")
        >>> report.snapshot, report.num_rewritten
        (1, 0)
    """

    url: str
    snapshot: int
    num_samples: int
    num_rewritten: int = 0
    num_removed: int = 0
    num_bytes_written: int = 0
    num_bytes_saved: int = 0


@hides_secrets
def compact(
    url: str | os.PathLike[str],
    *,
    below: float = 0.5,
    shard_size: Size = "8MiB",
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[RewriteProgress], None] | None = None,
) -> CompactReport:
    """Writes shards whose live share is below a limit again, without their deleted rows, in a new snapshot.

    The samples and their numbers stay the same. The shuffled order of an epoch is another one, because it depends on
    the shards, so a loader's state of the snapshot before is refused. Earlier snapshots, and their shards, stay.

    Args:
        url: URL of the dataset.
        below: Share of live rows, from 0 to 1, below which a shard is written again. With 1, every shard with a
            deleted row is.
        shard_size: Upper bound of a new shard; neighbours are joined up to this size.
        client: Client library, as for `concurrent_loader.storage.open_store`.
        storage_options: Options of the store, as for `concurrent_loader.storage.open_store`.
        source_options: Options of the store of adopted data; by default ``storage_options``.
        on_progress: Callback for progress, called on another thread.

    Raises:
        ConfigurationError: ``below`` is not a share.
        CommitConflict: Other writers were faster 20 times.
        CorruptData: A shard differs from what was written; nothing was committed.
        StorageError: The store failed in spite of retries.

    Example:
        >>> from concurrent_loader.storage import ShardWriter, compact, delete
        >>> with ShardWriter("thinned", columns={"label": "int64"}) as writer:
        ...     for label in range(10):
        ...         writer.write({"label": label})
        >>> report = delete("thinned", where="label < 8")
        >>> report = compact("thinned")
        >>> report.num_samples, report.num_rewritten, report.num_removed
        (2, 1, 8)
    """
    if isinstance(below, bool) or not isinstance(below, int | float) or not 0 <= below <= 1:
        raise ConfigurationError("below must be a share from 0 to 1", got=below)
    shard_bytes = parse_size(shard_size, name="shard_size")
    if not 4 << 10 <= shard_bytes <= 1 << 30:
        raise ConfigurationError("shard_size must be 4 KiB to 1 GiB", got=shard_size)
    with open_to_edit(url, client, storage_options, source_options) as opened:
        return opened.loop.run(_compact(opened, below, shard_bytes, on_progress))


async def _compact(
    opened: OpenDataset, below: float, shard_bytes: int, on_progress: Callable[[RewriteProgress], None] | None
) -> CompactReport:
    fetcher = ShardFetcher(opened.engine, opened.open_source)
    rewriter = Rewriter(opened.engine, fetcher, shard_bytes=shard_bytes, on_progress=on_progress)
    facts: dict[str, int] = {}

    async def make(newest: Manifest) -> Manifest | None:
        chosen = live_shares(newest) < below
        if not chosen.any():
            return None
        made = await rewriter.rewrite(newest, chosen)
        facts.update(
            num_rewritten=int(np.count_nonzero(chosen)),
            num_removed=newest.num_stored_samples - made.num_stored_samples,
            num_bytes_written=rewriter.num_bytes_written,
            num_bytes_saved=newest.num_bytes - made.num_bytes,
        )
        return made

    try:
        edited = await commit_edit(opened.engine, make)
    finally:
        await fetcher.close()
    return CompactReport(
        url=opened.engine.store.url,
        snapshot=edited.manifest.snapshot,
        num_samples=edited.manifest.num_samples,
        **(facts if edited.is_new else {}),
    )
