"""Imports in parts: plan, write each part anywhere, commit once. Needs no engine and no scheduler of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from concurrent_loader.storage.errors import AlreadyExists, ConfigurationError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.importers.ingest_plan import (
    IngestPart,
    PartPlan,
    WrittenPart,
    make_plan,
    save_plan,
    split_importer,
)
from concurrent_loader.storage.importers.item_run import IngestProgress, OnError
from concurrent_loader.storage.importers.made_part import make_part
from concurrent_loader.storage.importers.protocol import Importer, ImportScan
from concurrent_loader.storage.importers.sample_source import as_importer
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.commit_tokens import check_token, snapshot_of, user_metadata
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import latest_snapshot, load_manifest
from concurrent_loader.storage.shards.writing.shard_sizing import parse_shard_size
from concurrent_loader.storage.shards.writing.written_shards import check_append
from concurrent_loader.storage.sizes import Size
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.store import Store

__all__ = [
    "ImportOptions",
    "ScannedImport",
    "newest_snapshot",
    "plan_parts",
    "scan_import",
    "write_part",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of an import, which are the same for one process and for many.

    Attributes:
        on_error: What happens to a file that cannot be imported.
        append: Whether to add to the newest snapshot.
        overwrite: Whether to replace the samples.
        shard_bytes: Upper bound of a shard.
        metadata: JSON metadata, added to the importer's.
        token: Name of the commit, or None.
        again: Whether to append the source even if it was imported before.

    Raises:
        ConfigurationError: An option is invalid.
    """

    on_error: OnError = "fail"
    append: bool = False
    overwrite: bool = False
    shard_bytes: int = 8 << 20
    metadata: Mapping[str, Any]
    token: str | None = None
    again: bool = False

    @classmethod
    def checked(cls, *, shard_size: Size, metadata: Mapping[str, Any] | None, **options: Any) -> ImportOptions:
        """Returns valid options."""
        made = cls(shard_bytes=parse_shard_size(shard_size), metadata=user_metadata(metadata), **options)
        if made.on_error not in ("fail", "skip"):
            raise ConfigurationError("on_error must be 'fail' or 'skip'", got=made.on_error)
        if made.append and made.overwrite:
            raise ConfigurationError("append and overwrite exclude each other")
        if made.again and made.token is not None:
            raise ConfigurationError("again adds the source without a token; pass only one of them", got=made.token)
        check_token(made.token)
        return made

    def check_mode(self, newest: Manifest | None, url: str) -> None:
        """Checks that the dataset may be written.

        Raises:
            AlreadyExists: There is a dataset, and the import neither appends nor overwrites.
        """
        if newest is not None and not (self.append or self.overwrite):
            raise AlreadyExists(
                "the dataset exists already; add to it (append=True, --append) or replace it (overwrite=True)",
                url=url, got=f"snapshot {newest.snapshot}",
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedImport:
    """An import after the scan of its source.

    Attributes:
        importer: Importer, ready to be read or divided.
        scan: Result of the scan.
        newest: Newest snapshot of the dataset, or None.
        options: Options of the import.
        url: URL of the dataset.
    """

    importer: Importer
    scan: ImportScan
    newest: Manifest | None
    options: ImportOptions
    url: str

    @property
    def checked_token(self) -> str | None:
        """Name under which an earlier commit makes this one a repetition; None if nothing does."""
        options = self.options
        return self.scan.identity if options.append and options.token is None and not options.again else options.token

    @property
    def token(self) -> str | None:
        """Name of the commit."""
        return self.checked_token or self.scan.identity

    @property
    def repeats(self) -> bool:
        """Whether the dataset has a commit of this name."""
        return snapshot_of(self.newest, self.checked_token) is not None

    def check_destination(self) -> None:
        """Checks that parts can be written to the dataset.

        Raises:
            AlreadyExists: There is a dataset, and the import neither appends nor overwrites.
            SchemaError: The dataset to append to has other columns.
        """
        self.options.check_mode(self.newest, self.url)
        if self.options.append and self.newest is not None:
            check_append(self.newest, Schema.parse(self.scan.columns), self.url)

    @property
    def needs_stream(self) -> bool:
        """Whether the samples must be written one after the other: columns were added to the dataset to append to."""
        return self.options.append and self.newest is not None and bool(self.newest.places)

    def plan(self) -> tuple[PartPlan, list[IngestPart]] | None:
        """Returns the plan and its parts; None if the source is one stream."""
        importers = split_importer(self.importer, self.scan, shard_bytes=self.options.shard_bytes)
        if not importers:
            return None
        options = self.options
        plan = make_plan(
            self.importer, self.scan, num_parts=len(importers), shard_bytes=options.shard_bytes,
            on_error=options.on_error, append=options.append, metadata={**self.scan.metadata, **options.metadata},
            token=self.token, parent=self.newest,
        )  # fmt: skip
        parts = [
            IngestPart(
                plan=plan.name, number=number, num_parts=len(importers), columns=plan.columns,
                shard_bytes=plan.shard_bytes, on_error=plan.on_error, derived=self.scan.derived, token=plan.token,
                parent=0 if plan.parent is None else plan.parent[0], source=each,
            )
            for number, each in enumerate(importers)
        ]  # fmt: skip
        return plan, parts


def scan_import(importer: Importer, loop: LoopThread, store: Store, options: ImportOptions) -> ScannedImport:
    """Reads the newest snapshot, and scans the source.

    Raises:
        ConfigurationError: Source and destination are the same.
    """
    if store.url == importer.url:
        raise ConfigurationError("source and destination are the same folder", url=importer.url)
    newest = loop.run(newest_snapshot(store))
    scan = loop.run(importer.scan(newest if options.append else None))
    return ScannedImport(importer=importer, scan=scan, newest=newest, options=options, url=store.url)


@hides_secrets
def plan_parts(
    source: Importer,
    url: str | os.PathLike[str] | Store,
    *,
    on_error: OnError = "fail",
    append: bool = False,
    overwrite: bool = False,
    shard_size: Size = "8MiB",
    metadata: Mapping[str, Any] | None = None,
    token: str | None = None,
    again: bool = False,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[IngestPart, ...]:
    """Divides an import into parts, which `write_part` writes in any order, in any number of processes and machines.

    The same source and options give the same parts, as long as the source's files have ETags or times. So each machine
    may call this function by itself. The plan is also written to the dataset, below ``unfinished/``, where
    `commit_parts` finds it.

    Args:
        source: Importer of many files, such as `ImageFolder`, `TarFiles` or `ParquetFiles`; it is closed.
        url: URL of the dataset, or an open store, which is not closed.
        on_error: Like `ingest`.
        append: Like `ingest`.
        overwrite: Like `ingest`.
        shard_size: Upper bound of a shard, 8 MiB by default. A part has about four shards.
        metadata: JSON metadata, added to the importer's.
        token: Name of the commit; see `ShardWriter`.
        again: Whether to append the source even if it was imported before.
        client: Client library of the dataset's store.
        storage_options: Options of the dataset's store.

    Returns:
        Parts in the order of the samples. Each can be pickled.

    Raises:
        AlreadyExists: The dataset exists, and neither ``append`` nor ``overwrite`` is set; or it has this commit.
        SchemaError: The dataset to append to has other columns.
        ConfigurationError: An option is invalid, or the source is one stream that cannot be divided.

    Example:
        >>> from concurrent_loader import commit_parts, plan_parts, write_part
        >>> from concurrent_loader.storage import ImageFolder, open_store
        >>> parts = plan_parts(ImageFolder(open_store("images")), "from-parts")
        >>> _ = [write_part(part, "from-parts") for part in parts]
        >>> commit_parts("from-parts", parts).manifest.num_samples
        6
    """
    options = ImportOptions.checked(
        shard_size=shard_size, metadata=metadata, on_error=on_error, append=append, overwrite=overwrite, token=token,
        again=again,
    )  # fmt: skip
    importer = as_importer(source)
    with LoopThread("storage-ingest") as loop, opened(loop, url, client, storage_options) as store:
        try:
            scanned = scan_import(importer, loop, store, options)
            if scanned.repeats:
                raise AlreadyExists("the dataset has this commit already", url=store.url, got=scanned.checked_token)
            scanned.check_destination()
            made = scanned.plan()
            if made is None:
                raise ConfigurationError(
                    "this source is one stream, which cannot be divided into parts; import it by ingest()",
                    url=importer.url,
                )
            loop.run(save_plan(FetchEngine(store), made[0]))
        finally:
            loop.run(importer.close())
    return tuple(made[1])


@hides_secrets
def write_part(
    part: IngestPart,
    url: str | os.PathLike[str] | Store,
    *,
    uploads_in_flight: int = 4,
    resume: bool = True,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[IngestProgress], None] | None = None,
) -> WrittenPart:
    """Writes the samples of one part: its shards, and a small record of them below ``unfinished/``.

    The result depends only on the part. So a part may be written again, by two processes at once, or after a kill at
    any instant.

    Args:
        part: Part of `plan_parts`.
        url: URL of the dataset, or an open store, which is not closed.
        uploads_in_flight: Upper bound of concurrent uploads, 4 by default.
        resume: Whether a part that is written already is left as it is.
        client: Client library of the dataset's store.
        storage_options: Options of the dataset's store.
        on_progress: Callback for progress, called on the calling thread.

    Returns:
        Result of the part, which `commit_parts` also finds in the store.

    Raises:
        CorruptData: A file cannot be imported (``on_error="fail"``).
        StorageError: Source or destination failed. Write the part again.

    Example:
        >>> from concurrent_loader import plan_parts, write_part
        >>> from concurrent_loader.storage import ImageFolder, open_store
        >>> part = plan_parts(ImageFolder(open_store("images")), "a-part")[0]
        >>> write_part(part, "a-part").num_samples
        6
    """
    return make_part(
        part, url, uploads_in_flight=uploads_in_flight, resume=resume, client=client, storage_options=storage_options,
        on_progress=on_progress, making=nullcontext(),
    ).finish()  # fmt: skip


@contextmanager
def opened(
    loop: LoopThread, url: str | os.PathLike[str] | Store, client: str, storage_options: Mapping[str, Any] | None
) -> Iterator[Store]:
    """Opens the store of a dataset, and closes it; a given store stays open."""
    if isinstance(url, Store):
        yield url
        return
    store = open_store(url, client=client, **dict(storage_options or {}))
    try:
        yield store
    finally:
        loop.run(store.close())


async def newest_snapshot(store: Store) -> Manifest | None:
    """Returns the newest snapshot, or None without a dataset."""
    snapshot = await latest_snapshot(store)
    return await load_manifest(store, snapshot) if snapshot is not None else None
