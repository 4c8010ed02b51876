"""Opens one snapshot of a dataset for the commands that show samples. Nothing is kept on the local drive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from concurrent_loader.cli.options import open_for_command, parse_snapshot

if TYPE_CHECKING:
    from concurrent_loader.storage.fetch import FetchEngine
    from concurrent_loader.storage.shards.reader import DatasetReader

__all__ = ["open_reader"]


@asynccontextmanager
async def open_reader(
    url: str, *, client: str, options: dict[str, Any], snapshot: str | None
) -> AsyncIterator[DatasetReader]:
    """Opens a reader of a snapshot, without a cache and without hedged requests, so that each byte is fetched once.

    Args:
        url: URL of the dataset.
        client: Client library.
        options: Options of the store.
        snapshot: Number, tag or time of the snapshot; the newest by default.

    Raises:
        NotFound: The dataset or the snapshot does not exist.
    """
    from concurrent_loader.storage.cache import open_shard_cache
    from concurrent_loader.storage.fetch import FetchEngine
    from concurrent_loader.storage.shards.joined_reader import open_reader as open_columns
    from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
    from concurrent_loader.storage.shards.shard_fetcher import check_source

    async with open_for_command(url, client=client, options=options) as store:
        engine = FetchEngine(store, hedge=None)

        def open_source(source: str) -> FetchEngine:
            check_source(store.url, source)
            adopted = open_for_command(source, client=client, options=options)
            return FetchEngine(adopted, hedge=None, counters=engine.counters)

        cache = open_shard_cache(engine, None, open_source=open_source)
        try:
            yield open_columns(await load_manifest(engine, parse_snapshot(snapshot)), engine, cache)
        finally:
            await cache.close()
