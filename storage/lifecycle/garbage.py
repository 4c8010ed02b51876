"""Deletes snapshots that are not needed any more, and objects that nothing refers to.

The deletion has two phases, a grace period apart, and a run does what is due of both:

1. A snapshot that is not kept loses its manifest, so nobody can open it any more. The manifest is moved to
   ``collected/``, where it still protects its objects, for the readers that have the snapshot open.
2. An object that nothing has referred to for a grace period is deleted: no manifest, no manifest in ``collected/`` that
   is younger than the grace period, and no record of a job that is still at work.

An object younger than the grace period always stays, because a writer that has not committed may have written it. A
writer that finds its object there already writes it once more if it is not recent (`Uploader.put_content_addressed`).
Ages are differences between the store's own times, so the clock of this machine does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.lifecycle.references import (
    COLLECTED,
    DATA,
    RECORDS,
    data_digest,
    named_digests,
    run_of,
)
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.scan_objects import scan_objects
from concurrent_loader.storage.shards.manifest.manifest import manifest_key
from concurrent_loader.storage.shards.manifest.manifest_file import decode
from concurrent_loader.storage.shards.manifest.snapshots import NO_DATASET, list_manifests
from concurrent_loader.storage.shards.manifest.tags import read_tags
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["GRACE", "GarbageReport", "collect_garbage"]

GRACE = timedelta(days=7)
"""Default of the grace period."""

_CLOCK = f"{COLLECTED}clock.json"  # rewritten by each run: its last_modified is the store's current time
_MANIFEST = re.compile(rf"{COLLECTED}(\d{{10}})\.clm")


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageReport:
    """What garbage collection did, or would do.

    Attributes:
        dry_run: Whether nothing was deleted.
        deleted_snapshots: Numbers of the snapshots that can no longer be opened.
        kept_snapshots: Numbers of the snapshots that stay.
        num_objects: Number of objects that were deleted.
        num_bytes: Their size in bytes.
        num_waiting: Number of objects that no snapshot refers to, and that wait for the end of their grace period.
        waiting_bytes: Their size in bytes.
        num_abandoned: Number of jobs (adoptions, conversions) that were abandoned, and whose records were deleted.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import collect_garbage, open_store
        >>> report = asyncio.run(collect_garbage(open_store("photos"), dry_run=True))
        >>> report.kept_snapshots, report.num_objects
        ((1,), 0)
    """

    dry_run: bool
    deleted_snapshots: tuple[int, ...]
    kept_snapshots: tuple[int, ...]
    num_objects: int
    num_bytes: int
    num_waiting: int
    waiting_bytes: int
    num_abandoned: int


async def collect_garbage(
    source: Store | FetchEngine,
    *,
    keep: int | None = None,
    older_than: timedelta | None = None,
    grace: timedelta = GRACE,
    dry_run: bool = False,
) -> GarbageReport:
    """Deletes old snapshots, and objects that no snapshot needs. Safe beside readers and writers, and safe to kill.

    A snapshot is deleted only if ``keep`` or ``older_than`` is given, and all given conditions hold. The newest
    snapshot and snapshots with a tag always stay. Objects in folders that are not the dataset's are never touched.

    Args:
        source: Store of the dataset, or an engine over it.
        keep: Number of newest snapshots that stay.
        older_than: Age since which a snapshot has not been the newest one; younger ones stay.
        grace: Time for which an object stays after the last thing that refers to it was deleted, or after it was
            written. It must be longer than any writer takes from its first upload to its commit, by an hour.
        dry_run: Whether to report what would be deleted, and to delete nothing.

    Raises:
        NotFound: The store holds no dataset.
        ConfigurationError: An argument is invalid, or the store keeps no times.
        FormatError: A manifest or tag is damaged. Nothing was deleted, because it is unknown what it refers to.

    Example:
        >>> import asyncio
        >>> from datetime import timedelta
        >>> from concurrent_loader.storage import collect_garbage, open_store
        >>> asyncio.run(collect_garbage(open_store("photos"), keep=2, grace=timedelta(days=3))).deleted_snapshots
        ()
    """
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise ConfigurationError("keep must be an integer of at least 1", got=keep)
    for name, value in (("older_than", older_than), ("grace", grace)):
        if value is not None and (not isinstance(value, timedelta) or value < timedelta(0)):
            raise ConfigurationError(f"{name} must be a timedelta that is not negative", got=value)
    engine = source if isinstance(source, FetchEngine) else FetchEngine(source)
    return await _Collection(engine, grace, dry_run=dry_run).run(keep, older_than)


class _Collection:
    """One run."""

    def __init__(self, engine: FetchEngine, grace: timedelta, *, dry_run: bool) -> None:
        self._engine = engine
        self._store = engine.store
        self._uploader = Uploader(store=engine.store, retry=engine.policy)
        self._grace = grace
        self._dry_run = dry_run

    async def run(self, keep: int | None, older_than: timedelta | None) -> GarbageReport:
        manifests = await list_manifests(self._engine)
        if not manifests:
            raise NotFound(NO_DATASET, url=self._store.url, key="manifests/")
        times = {number: self._time(meta) for number, meta in manifests.items()}
        now = await self._now()
        tagged = set((await read_tags(self._engine)).values())
        doomed = _select(times, keep, older_than, now) - tagged
        if not self._dry_run:
            doomed = await self._retire(sorted(doomed))
        return await self._sweep(doomed, due=now - self._grace)

    # -- phase 1: snapshots ----------------------------------------------------------------------------------------

    async def _retire(self, doomed: Sequence[int]) -> set[int]:
        """Moves manifests to ``collected/``; returns the numbers of those that are gone."""
        for number in doomed:
            data = (await self._engine.fetch_object(manifest_key(number))).data
            decode(data, url=self._store.url)  # a damaged manifest stays where it is
            # The object in ``collected/`` is written anew even if an interrupted run has left one: its age counts.
            await self._uploader.put(f"{COLLECTED}{number:010d}.clm", data)
            await self._delete(manifest_key(number))
        return set(doomed) - await self._restore_tagged()

    async def _restore_tagged(self) -> set[int]:
        """Moves manifests back that got a tag while they were moved; see `tag_snapshot`."""
        tagged = set((await read_tags(self._engine)).values())
        restored = set()
        for number in sorted(tagged & (await self._collected()).keys()):
            key = f"{COLLECTED}{number:010d}.clm"
            data = (await self._engine.fetch_object(key)).data
            await self._uploader.put(manifest_key(number), data)
            await self._delete(key)
            restored.add(number)
        return restored

    # -- phase 2: objects ------------------------------------------------------------------------------------------

    async def _records(self) -> _Records:
        records = _Records()
        for prefix in RECORDS:
            records = await scan_objects(self._engine, prefix, records.copy)
        return records

    async def _sweep(self, doomed: set[int], due: datetime) -> GarbageReport:
        # Listed before the manifests are read, so that a commit meanwhile protects its objects.
        objects = _Objects(due)
        for prefix in DATA:
            objects = await scan_objects(self._engine, prefix, objects.copy)
        records = await self._records()
        kept = [number for number in await list_manifests(self._engine) if number not in doomed]
        needed: set[str] = set()
        for number in kept:
            needed |= await self._references(manifest_key(number), number)
        abandoned = [run for run, newest in records.newest.items() if newest < due]
        for run, keys in records.keys.items():
            if run not in abandoned:
                for key in keys:
                    needed |= await self._references(key)
        waiting: set[str] = set()
        for number in doomed if self._dry_run else ():
            waiting |= await self._references(manifest_key(number), number)
        collected = await self._collected()
        expired = [meta for meta in collected.values() if self._time(meta) < due]
        for number, meta in collected.items():
            if meta not in expired:
                waiting |= await self._references(meta.key, number)
        old = {key: size for key, size in objects.old.items() if data_digest(key) not in needed}
        garbage = {key: size for key, size in old.items() if data_digest(key) not in waiting}
        left = {key: size for key, size in old.items() if key not in garbage}
        left |= {key: size for key, size in objects.recent.items() if data_digest(key) not in needed}
        if not self._dry_run:
            now = await self._records()
            if any(now.newest.get(run, due) >= due for run in abandoned):  # resumed meanwhile, perhaps even committed
                return await self._sweep(doomed, due)
            await map_concurrently(lambda key: self._delete_if_old(key, due), list(garbage))
            keys = [key for run in abandoned for key in records.keys[run]]
            await map_concurrently(self._delete, keys)
            await map_concurrently(self._delete, [meta.key for meta in expired])
        return GarbageReport(
            dry_run=self._dry_run,
            deleted_snapshots=tuple(sorted(doomed)),
            kept_snapshots=tuple(kept),
            num_objects=len(garbage),
            num_bytes=sum(garbage.values()),
            num_waiting=len(left),
            waiting_bytes=sum(left.values()),
            num_abandoned=len(abandoned),
        )

    async def _references(self, key: str, number: int | None = None) -> set[str]:
        """Returns the digests of the objects that a manifest or record names.

        Args:
            key: Key of the manifest or record.
            number: Number of the snapshot; None for a record.

        Raises:
            FormatError: The manifest is damaged, or of a version that this library does not know.
        """
        try:
            data = (await self._engine.fetch_object(key)).data
        except NotFound:
            return set()  # the job has committed; or another run moved the manifest to where the next listing finds it
        if number is not None and decode(data, url=self._store.url).snapshot != number:
            raise FormatError("the manifest has the key of another snapshot", url=self._store.url, key=key)
        return named_digests(data)

    async def _collected(self) -> dict[int, ObjectMeta]:
        found = await scan_objects(self._engine, COLLECTED, _Collected)
        return found.manifests

    async def _delete(self, key: str) -> None:
        await self._engine.call_with_retries(lambda: self._store.delete(key), key)

    async def _delete_if_old(self, key: str, due: datetime) -> None:
        """Deletes an object unless a writer has written it again. Every attempt looks at it first."""

        async def attempt() -> None:
            with suppress(NotFound):
                if self._time(await self._store.head(key)) < due:
                    await self._store.delete(key)

        await self._engine.call_with_retries(attempt, key)

    # -- times -----------------------------------------------------------------------------------------------------

    async def _now(self) -> datetime:
        if self._dry_run:
            return datetime.now(UTC)
        await self._uploader.put(_CLOCK, b"{}")
        return self._time(await self._engine.call_with_retries(lambda: self._store.head(_CLOCK), _CLOCK))

    def _time(self, meta: ObjectMeta) -> datetime:
        if meta.last_modified is None:
            raise ConfigurationError(
                "the store keeps no times, so it is unknown which objects are old enough to delete",
                url=self._store.url, key=meta.key,
            )  # fmt: skip
        return meta.last_modified


def _select(times: Mapping[int, datetime], keep: int | None, older_than: timedelta | None, now: datetime) -> set[int]:
    """Returns the numbers of the snapshots to delete, tags aside.

    Args:
        times: Times of the commits by number, ascending.
        keep: Number of newest snapshots that stay.
        older_than: Age since which a snapshot has not been the newest one.
        now: Current time.
    """
    if keep is None and older_than is None:
        return set()
    numbers = list(times)
    doomed = set(numbers[: -(keep or 1)])
    if older_than is not None:
        replaced = {number: times[following] for number, following in pairwise(numbers)}
        doomed = {number for number in doomed if replaced[number] < now - older_than}
    return doomed


class _Objects:
    """Lists the data objects, by whether they are old enough to be deleted.

    Args:
        due: Time before which an object must have been written to be old.
    """

    def __init__(self, due: datetime) -> None:
        self._due = due
        self.old: dict[str, int] = {}
        self.recent: dict[str, int] = {}

    def copy(self) -> _Objects:
        """Returns a visitor that adds to what this one has."""
        other = _Objects(self._due)
        other.old, other.recent = dict(self.old), dict(self.recent)
        return other

    def add(self, meta: ObjectMeta) -> None:
        if data_digest(meta.key) is not None:
            is_old = meta.last_modified is not None and meta.last_modified < self._due
            (self.old if is_old else self.recent)[meta.key] = meta.size

    def refuse(self, error: StorageError) -> None:
        """Ignores an entry that cannot be listed: it is no object of a dataset."""


class _Records:
    """Lists the records of jobs that have not committed."""

    def __init__(self) -> None:
        self.keys: dict[str, list[str]] = {}
        self.newest: dict[str, datetime] = {}

    def copy(self) -> _Records:
        """Returns a visitor that adds to what this one has."""
        other = _Records()
        other.keys, other.newest = {run: list(keys) for run, keys in self.keys.items()}, dict(self.newest)
        return other

    def add(self, meta: ObjectMeta) -> None:
        if (run := run_of(meta.key)) is not None:
            self.keys.setdefault(run, []).append(meta.key)
            written = meta.last_modified or datetime.max.replace(tzinfo=UTC)
            self.newest[run] = max(self.newest.get(run, written), written)

    def refuse(self, error: StorageError) -> None:
        """Ignores an entry that cannot be listed: it is no record."""


class _Collected:
    """Lists the manifests in ``collected/``."""

    def __init__(self) -> None:
        self.manifests: dict[int, ObjectMeta] = {}

    def add(self, meta: ObjectMeta) -> None:
        if (match := _MANIFEST.fullmatch(meta.key)) is not None:
            self.manifests[int(match[1])] = meta

    def refuse(self, error: StorageError) -> None:
        """Ignores an entry that cannot be listed: it is no manifest."""
