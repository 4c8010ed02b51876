"""Looks up recorded samples in their bucket: keys and digests of a step, and samples that were deleted since."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from concurrent_loader.recorder.order_file import Part
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.shards.format.schema import ColumnKind
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import list_snapshots, load_manifest
from concurrent_loader.storage.shards.reader import DatasetReader

__all__ = ["Deletions", "StoredSample", "check_snapshot", "find_deletions", "look_up"]


@dataclass(frozen=True, slots=True)
class StoredSample:
    """Where a recorded sample is stored.

    Attributes:
        sample: Number of the sample.
        key: Key of its shard.
        row: Row in the shard.
        digests: Payload column → xxh3_64 digest of the value, as hex; empty without digests.
    """

    sample: int
    key: str
    row: int
    digests: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Deletions:
    """The samples of a recorded snapshot that later snapshots do not have.

    Attributes:
        deleted: (num_samples,) bool, samples that a later snapshot has deleted.
        rewritten: (num_samples,) bool, samples of shards that the newest snapshot does not have. Whether they were
            deleted after their shard was written again is not known.
        newest: Number of the newest snapshot.
    """

    deleted: npt.NDArray[np.bool_]
    rewritten: npt.NDArray[np.bool_]
    newest: int


def check_snapshot(manifest: Manifest, part: Part) -> None:
    """Checks that a snapshot is the recorded one.

    Raises:
        ConfigurationError: It has another digest.
    """
    if manifest.digest != part.digest:
        raise ConfigurationError(
            "the URL has another dataset than the recorded one", expected=part.digest, got=manifest.digest
        )


async def look_up(reader: DatasetReader, samples: list[int]) -> list[StoredSample]:
    """Returns where samples are stored, and their digests. Fetches the indexes of their shards."""
    payload = [name for name in reader.schema.names if reader.schema[name].kind is ColumnKind.PAYLOAD]
    found = []
    for sample in samples:
        shard, row = reader.locate(sample)
        digests = {}
        for name in payload:
            files, stored = reader.place(name)
            index = await files.index(shard)
            if index.has_digests:
                digests[name] = f"{index.payload_digest(row, stored):016x}"
        found.append(StoredSample(sample, reader.entry(shard).key, row, digests))
    return found


async def find_deletions(engine: FetchEngine, part: Part) -> Deletions:
    """Returns which samples of a recorded snapshot were deleted by now. Fetches the manifests of all later snapshots.

    Raises:
        ConfigurationError: The dataset has no snapshots, or is another one.
        SnapshotDeleted: The recorded snapshot was deleted.
    """
    if part.snapshot is None:
        raise ConfigurationError("raw objects have no snapshots, so later deletions are not known", got=part.url)
    recorded = await load_manifest(engine, part.snapshot)
    check_snapshot(recorded, part)
    live = LiveRows(recorded)
    shards = {digest: number for number, digest in enumerate(recorded.table.digests)}
    deleted, newest = np.zeros(len(live), np.bool_), part.snapshot
    rewritten = np.zeros(len(live), np.bool_)
    for newest in [number for number in await list_snapshots(engine) if number > part.snapshot]:
        later = await load_manifest(engine, newest)
        firsts = LiveRows(later).first_rows
        rewritten[:] = True
        for place, digest in enumerate(later.table.digests):
            number = shards.get(digest)
            if number is None:
                continue
            own = slice(live.first_samples[number], live.first_samples[number + 1])
            rewritten[own] = False
            if later.deleted is not None:
                deleted[own] |= later.deleted.contains(live.rows_of_shard(number) + firsts[place])
    return Deletions(deleted, rewritten & ~deleted, newest)
