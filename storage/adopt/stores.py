"""Opens the stores that an adoption or a conversion reads and writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from concurrent_loader.storage.checked_url import check_there
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.stores.backends.open_store import open_for

__all__ = ["open_both"]


@contextmanager
def open_both(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    client: str,
    storage_options: Mapping[str, Any] | None,
    source_options: Mapping[str, Any] | None,
) -> Iterator[tuple[LoopThread, FetchEngine, FetchEngine]]:
    """Opens an event loop, and engines over source and target.

    Raises:
        ConfigurationError: They are the same folder, or cannot be opened.
        NotFound: The source is a path that does not exist.
    """
    options = dict(storage_options or {})
    check_there(os.fspath(source))
    data = open_for(source, client, options if source_options is None else source_options)
    written = open_for(target, client, options)
    if data.url == written.url:
        raise ConfigurationError("both are the same folder", url=data.url)
    with LoopThread("storage-adopt") as loop:
        try:
            yield loop, FetchEngine(data), FetchEngine(written)
        finally:
            loop.run(data.close())
            loop.run(written.close())
