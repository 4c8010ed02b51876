"""Puts the parts of an import together as one snapshot, exactly once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from concurrent_loader.storage.errors import CommitConflict, ConfigurationError, NotFound, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.importers.ingest_plan import (
    IngestPart,
    PartPlan,
    WrittenPart,
    check_parts,
    delete_plan,
    list_plans,
    load_part,
    load_plan,
    part_name,
)
from concurrent_loader.storage.importers.item_run import EncodedSizes, import_metadata
from concurrent_loader.storage.importers.protocol import ImportProblem
from concurrent_loader.storage.importers.report import IngestReport
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.commit_tokens import snapshot_of
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import commit, latest_snapshot, load_manifest
from concurrent_loader.storage.shards.writing.records import Records
from concurrent_loader.storage.shards.writing.upload_queue import UploadQueue
from concurrent_loader.storage.shards.writing.written_shards import WrittenShards, check_append
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.store import Store

__all__ = ["PartsCommit", "commit_parts", "unfinished_imports"]

_AHEAD = 16  # parts whose records and tails are fetched at once


class PartsCommit:
    """The commit of one plan, to which the parts are added in order.

    Args:
        plan: Plan of the import.
        queue: Uploads to the dataset's store.
        num_parts: Number of parts, if the plan was made before it was known.

    Raises:
        CommitConflict: The snapshot to build on was deleted or replaced.
        SchemaError: The snapshot to append to has other columns.
    """

    def __init__(self, plan: PartPlan, queue: UploadQueue, *, num_parts: int | None = None) -> None:
        self._plan = plan
        self._num_parts = plan.num_parts if num_parts is None else num_parts
        self._queue = queue
        self._began = time.monotonic()
        try:
            self._parent = None if plan.parent is None else queue.run(load_manifest(queue.store, plan.parent[0]))
        except NotFound as error:
            raise CommitConflict(
                "the snapshot to build on was deleted since the import was planned; plan it again"
            ) from error
        if plan.parent is not None and self._parent is not None and self._parent.digest != plan.parent[1]:
            raise CommitConflict("the dataset was made anew since the import was planned; plan it again")
        schema = Schema.parse(plan.columns)
        if plan.append and self._parent is not None:
            check_append(self._parent, schema, queue.store.url)
        self._written = WrittenShards(schema)
        self._next = 0
        self._num_samples = 0
        self._num_bytes = 0
        self._skipped: list[ImportProblem] = []
        self._encoded: EncodedSizes = {}

    def add(self, part: WrittenPart, *, number: int | None = None) -> None:
        """Adds the next part.

        Args:
            part: Result of the part.
            number: Number of the part, if it is not the one that it was written with.

        Raises:
            ConfigurationError: A part was lost or repeated.
        """
        got = part.number if number is None else number
        if got != self._next:
            raise ConfigurationError("a part is missing or repeated", expected=self._next, got=got)
        self._next += 1
        for done in part.shards:
            self._written.add_entry(done.entry, done.fixed, done.statistics, self._queue.put)
        self._num_samples += part.num_samples
        self._num_bytes += part.num_bytes
        self._skipped += part.skipped
        for column, counts in part.encoded.items():
            total = self._encoded.setdefault(column, {})
            for name, count in counts.items():
                total[name] = total.get(name, 0) + count

    def finish(self) -> IngestReport:
        """Commits the parts. If another run has committed the same plan, its snapshot is the result.

        Raises:
            ConfigurationError: A part is missing.
            CommitConflict: Another writer committed something else meanwhile.
            CorruptData: No file could be imported.
            NotFound: The source has no samples.
        """
        plan, queue = self._plan, self._queue
        if self._next != self._num_parts:
            raise ConfigurationError("parts of the plan are missing", expected=self._num_parts, got=self._next)
        onto = self._parent if plan.append else None
        facts = import_metadata(
            num_samples=self._num_samples, skipped=self._skipped, encoded=self._encoded, parent=onto, url=plan.url
        )
        if not self._num_samples:
            raise NotFound("nothing to import: the source has no samples", url=plan.url)
        self._written.flush(queue.put)
        queue.flush()
        manifest = self._written.manifest(
            self._parent, append=plan.append, metadata={**plan.metadata, **facts}, token=plan.token
        )
        made, repeats = queue.run(_commit_once(queue.store, manifest, plan.token))
        with suppress(StorageError):  # small, and no reader looks at them; the next commit of this plan deletes them
            queue.run(delete_plan(FetchEngine(queue.store), plan.name))
        return IngestReport(
            manifest=made,
            num_samples=0 if repeats else self._num_samples,
            num_bytes=self._num_bytes,
            num_ignored=plan.num_ignored,
            skipped=tuple(self._skipped),
            duration_s=time.monotonic() - self._began,
            repeats=repeats,
        )


async def _commit_once(store: Store, manifest: Manifest, token: str | None) -> tuple[Manifest, bool]:
    """Commits a snapshot; returns it, or the one that another run of the same plan committed, and whether it did."""
    newest = await latest_snapshot(store) or 0
    if newest < manifest.snapshot:
        try:
            await commit(store, manifest)
        except CommitConflict:
            pass
        else:
            return manifest, False
    made = await committed_earlier(store, token, parent=manifest.snapshot - 1, digest=manifest.digest)
    if made is None:
        raise CommitConflict(
            "another writer committed meanwhile; run it again, with --append (append=True) to add to that",
            url=store.url,
        )
    return made, True


async def committed_earlier(store: Store, token: str | None, *, parent: int, digest: str = "") -> Manifest | None:
    """Returns the snapshot that another run of a plan committed.

    Args:
        store: Store of the dataset.
        token: Name of the commit, or None.
        parent: Number of the snapshot that the plan builds on; 0 for none.
        digest: Digest of the manifest that the plan makes.
    """
    with suppress(NotFound):
        found = await load_manifest(store, parent + 1)
        if found.digest == digest:
            return found
    if await latest_snapshot(store) is None:
        return None
    newest = await load_manifest(store)
    number = snapshot_of(newest, token)
    if number is None or number <= parent:
        return None
    try:
        return await load_manifest(store, number)
    except NotFound:  # that snapshot was deleted; the newest one has its samples
        return newest


@hides_secrets
def commit_parts(
    url: str | os.PathLike[str] | Store,
    parts: Sequence[IngestPart] | str | None = None,
    *,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> IngestReport:
    """Makes a snapshot of the parts that `write_part` has written. Calling it again changes nothing.

    Args:
        url: URL of the dataset, or an open store, which is not closed.
        parts: All parts of `plan_parts`; or the name of their plan; or None if the dataset has one unfinished import.
        client: Client library of the dataset's store.
        storage_options: Options of the dataset's store.

    Returns:
        Report of the import; ``repeats`` is true if an earlier call has committed it.

    Raises:
        ConfigurationError: A part is missing in ``parts``, or given twice.
        NotFound: A part has no result in the store; the message names it. Or there is no unfinished import.
        CommitConflict: Another writer committed meanwhile. Plan again: the parts that are written are used.

    Example:
        >>> from concurrent_loader import commit_parts, plan_parts, write_part
        >>> from concurrent_loader.storage import ImageFolder, open_store
        >>> parts = plan_parts(ImageFolder(open_store("images")), "committed")
        >>> _ = [write_part(part, "committed") for part in parts]
        >>> [commit_parts("committed", parts).repeats for _ in range(2)]
        [False, True]
    """
    store = url if isinstance(url, Store) else open_store(url, client=client, **dict(storage_options or {}))
    queue = UploadQueue(store, in_flight=4, keep_store=isinstance(url, Store))
    try:
        engine = FetchEngine(store)
        plan = None
        try:
            name = queue.run(_plan_name(engine, parts))
            plan = queue.run(load_plan(engine, name))
            records = Records(engine, name)
            queue.run(records.open())
            missing = [number for number in range(plan.num_parts) if not records.has(part_name(number))]
            if missing:
                raise _missing(store, missing, plan.num_parts)
        except NotFound:
            made = None
            if plan is not None:
                parent = 0 if plan.parent is None else plan.parent[0]
                made = queue.run(committed_earlier(store, plan.token, parent=parent))
            elif parts is not None and not isinstance(parts, str):
                made = queue.run(committed_earlier(store, parts[0].token, parent=parts[0].parent))
            if made is None:
                raise
            if plan is not None:  # the call that committed was interrupted while it deleted the records
                with suppress(StorageError):
                    queue.run(delete_plan(engine, plan.name))
            return IngestReport(
                manifest=made, num_samples=0, num_bytes=0, num_ignored=0, skipped=(), duration_s=0.0, repeats=True
            )
        run = PartsCommit(plan, queue)
        for start in range(0, plan.num_parts, _AHEAD):
            numbers = range(start, min(start + _AHEAD, plan.num_parts))
            for number, part in zip(numbers, queue.run(_load_all(records, numbers)), strict=True):
                if part is None:
                    raise _missing(store, [number], plan.num_parts)
                run.add(part)
        return run.finish()
    finally:
        queue.close()


@hides_secrets
def unfinished_imports(
    url: str | os.PathLike[str] | Store,
    *,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, tuple[int, int]]:
    """Returns the imports that were planned and not committed: their names, parts written, and number of parts.

    Args:
        url: URL of the dataset, or an open store, which is not closed.
        client: Client library of the dataset's store.
        storage_options: Options of the dataset's store.

    Example:
        >>> from concurrent_loader import plan_parts
        >>> from concurrent_loader.storage import ImageFolder, open_store
        >>> from concurrent_loader.storage.importers.parts_commit import unfinished_imports
        >>> _ = plan_parts(ImageFolder(open_store("images")), "begun")
        >>> list(unfinished_imports("begun").values())
        [(0, 1)]
    """
    store = url if isinstance(url, Store) else open_store(url, client=client, **dict(storage_options or {}))

    async def run() -> dict[str, tuple[int, int]]:
        try:
            engine = FetchEngine(store)
            found: dict[str, tuple[int, int]] = {}
            for name, num_written in (await list_plans(engine)).items():
                with suppress(NotFound):  # committed meanwhile
                    found[name] = (num_written, (await load_plan(engine, name)).num_parts)
            return found
        finally:
            if not isinstance(url, Store):
                await store.close()

    return asyncio.run(run())


async def _plan_name(engine: FetchEngine, parts: Sequence[IngestPart] | str | None) -> str:
    if isinstance(parts, str):
        return parts
    if parts is not None:
        return check_parts(parts)
    names = sorted(await list_plans(engine))
    if not names:
        raise NotFound("there is no unfinished import", url=engine.store.url)
    if len(names) > 1:
        raise ConfigurationError(
            "there are several unfinished imports; name one (--plan NAME, in Python the second argument)",
            url=engine.store.url, got=names,
        )  # fmt: skip
    return names[0]


async def _load_all(records: Records, numbers: Sequence[int]) -> list[WrittenPart | None]:
    return list(await asyncio.gather(*(load_part(records, number) for number in numbers)))


def _missing(store: Store, numbers: list[int], num_parts: int) -> NotFound:
    shown = ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
    return NotFound(
        f"{len(numbers)} of {num_parts} parts are not written, or their shards are gone: {shown}; write them, and "
        "commit again",
        url=store.url,
    )
