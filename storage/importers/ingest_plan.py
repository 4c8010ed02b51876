"""Divides an import into parts that can be written anywhere and in any order, and keeps the plan in the dataset.

The division depends only on the source and on the size of a shard, so that every run, with any number of workers,
makes the same shards. The plan and the results of the parts are below ``unfinished/PLAN/`` until the commit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec

from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.importers.item_run import EncodedSizes, OnError
from concurrent_loader.storage.importers.protocol import Importer, ImportProblem, ImportScan
from concurrent_loader.storage.scan_objects import list_metas
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.writing.records import UNFINISHED_FOLDER, Records, run_name
from concurrent_loader.storage.shards.writing.written_shards import DoneShard

__all__ = [
    "IngestPart",
    "PartPlan",
    "WrittenPart",
    "check_parts",
    "delete_plan",
    "list_plans",
    "load_part",
    "load_plan",
    "make_plan",
    "part_name",
    "save_part",
    "save_plan",
    "split_importer",
]

_MAX_PARTS = 10_000
_SHARDS_PER_PART = 4


class PartPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts of one import have in common, as it is stored in the dataset.

    Attributes:
        name: Name of the plan: a digest of the source, the division and the options.
        url: URL of the source for messages.
        num_parts: Number of parts.
        num_samples: Number of samples to expect, including files that cannot be imported; None if unknown.
        num_ignored: Number of objects of the source that are not of its format.
        columns: Column types by name.
        shard_bytes: Upper bound of a shard.
        on_error: What happens to a file that cannot be imported.
        derived: Columns whose type was derived from the first samples.
        append: Whether the commit adds to the newest snapshot.
        metadata: Metadata of the commit.
        token: Name of the commit, or None.
        parent: Number and digest of the snapshot to build on; None for a new dataset.
        is_repeatable: Whether another run makes the same plan.
    """

    name: str
    url: str
    num_parts: int
    num_samples: int | None
    num_ignored: int
    columns: dict[str, str]
    shard_bytes: int
    on_error: OnError
    derived: list[str]
    append: bool
    metadata: dict[str, Any]
    token: str | None
    parent: tuple[int, str] | None
    is_repeatable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPart:
    """One part of an import: small, and made to be pickled and sent to another process or machine.

    A part holds the options of the source's store, which may be secret. So do not keep a pickled part in a bucket.

    Attributes:
        plan: Name of the plan that the part belongs to.
        number: Number of the part, from 0.
        num_parts: Number of parts of the plan.
        columns: Column types by name.
        shard_bytes: Upper bound of a shard.
        on_error: What happens to a file that cannot be imported.
        derived: Columns whose type was derived from the first samples.
        token: Name of the commit, or None.
        parent: Number of the snapshot to build on; 0 for a new dataset.
        source: Importer of this part's samples, which needs no scan.

    Example:
        >>> from concurrent_loader import plan_parts
        >>> from concurrent_loader.storage import ImageFolder, open_store
        >>> parts = plan_parts(ImageFolder(open_store("images")), "planned", shard_size="4KiB")
        >>> [part.number for part in parts] == list(range(parts[0].num_parts))
        True
    """

    plan: str
    number: int
    num_parts: int
    columns: dict[str, str]
    shard_bytes: int
    on_error: OnError
    derived: frozenset[str]
    token: str | None
    parent: int
    source: Importer = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """The result of one part. Its shards are in the store, but in no snapshot yet.

    Attributes:
        number: Number of the part.
        num_samples: Number of samples written.
        num_bytes: Number of bytes of the imported files.
        skipped: Files that could not be imported, in the order of the samples.
        shards: Shards in order.
        encoded: Bytes in the source and as stored, of columns that were encoded again.

    Example:
        >>> from concurrent_loader import plan_parts, write_part
        >>> from concurrent_loader.storage import ImageFolder, open_store
        >>> parts = plan_parts(ImageFolder(open_store("images")), "in-parts")
        >>> sum(write_part(part, "in-parts").num_samples for part in parts)
        6
    """

    number: int
    num_samples: int
    num_bytes: int
    skipped: tuple[ImportProblem, ...] = ()
    shards: tuple[DoneShard, ...] = field(repr=False)
    encoded: EncodedSizes = field(default_factory=dict)


def split_importer(importer: Importer, scan: ImportScan, *, shard_bytes: int) -> list[Importer]:
    """Divides a scanned importer into importers of consecutive samples; an empty list if it is one stream.

    A part has about four shards, or more if there would be more than 10,000 parts. A part ends a little before its
    last shard is full, because the size of a file is not exactly that of its sample.
    """
    split = getattr(importer, "split", None)
    if split is None:
        return []
    part_bytes = _SHARDS_PER_PART * (shard_bytes - shard_bytes // 64)
    parts: list[Importer] = split(max(part_bytes, -(-scan.num_bytes // _MAX_PARTS)))
    return parts


def make_plan(
    importer: Importer,
    scan: ImportScan,
    *,
    num_parts: int,
    shard_bytes: int,
    on_error: OnError,
    append: bool,
    metadata: Mapping[str, Any],
    token: str | None,
    parent: Manifest | None,
) -> PartPlan:
    """Returns the plan of an import.

    The name does not depend on the parent: if another writer commits first, the parts that are written stay useful.
    """
    rest: dict[str, Any] = {
        "url": importer.url, "num_parts": num_parts, "columns": scan.columns, "shard_bytes": shard_bytes,
        "on_error": on_error, "derived": sorted(scan.derived), "append": append, "metadata": dict(metadata),
        "token": token, "num_samples": scan.num_samples, "num_ignored": scan.num_ignored,
    }  # fmt: skip
    source = scan.identity or uuid4().hex
    return PartPlan(
        name=run_name({"ingest": source, "order": list(scan.columns), **rest}),
        parent=None if parent is None else (parent.snapshot, parent.digest),
        is_repeatable=scan.identity is not None,
        **rest,
    )


def part_name(number: int) -> str:
    """Returns the name of a part's record."""
    return f"part-{number:06d}"


async def save_plan(engine: FetchEngine, plan: PartPlan) -> None:
    """Writes a plan to the dataset, in place of an earlier one with another parent."""
    data = json.dumps(msgspec.to_builtins(plan)).encode()
    await Uploader(store=engine.store, retry=engine.policy).put(_plan_key(plan.name), data)


async def load_plan(engine: FetchEngine, name: str) -> PartPlan:
    """Reads a plan.

    Raises:
        NotFound: There is no such plan, or its commit is done.
        FormatError: The plan is damaged, or a later version wrote it.
    """
    key = _plan_key(name)
    try:
        data = (await engine.fetch_object(key)).data
    except NotFound as error:
        raise NotFound("there is no unfinished import of this name; it may be committed", key=key) from error
    try:
        return msgspec.convert(json.loads(bytes(data)), PartPlan)
    except (msgspec.MsgspecError, ValueError) as error:
        raise FormatError(f"the plan cannot be read: {error}", url=engine.store.url, key=key) from error


async def list_plans(engine: FetchEngine) -> dict[str, int]:
    """Returns the names of the unfinished imports, with the number of parts that are written."""
    keys = [meta.key.split("/") for meta in await list_metas(engine, f"{UNFINISHED_FOLDER}/")]
    found = {key[1]: 0 for key in keys if len(key) == 3 and key[2] == "plan.json"}
    for key in keys:
        if len(key) == 3 and key[1] in found and key[2].startswith("part-"):
            found[key[1]] += 1
    return found


async def delete_plan(engine: FetchEngine, name: str) -> None:
    """Deletes a plan and the records of its parts. The plan is last, so that an interrupted call can be repeated."""
    records = Records(engine, name)
    await records.open()
    for key in sorted(records.keys, key=lambda key: (key == _plan_key(name), key)):
        await engine.call_with_retries(lambda key=key: engine.store.delete(key), key)  # type: ignore[misc]


async def save_part(records: Records, part: WrittenPart) -> None:
    """Writes the record of a part."""
    facts = {
        "num_samples": part.num_samples,
        "num_bytes": part.num_bytes,
        "skipped": [[each.name, each.reason] for each in part.skipped],
        "encoded": part.encoded,
    }
    await records.save(part_name(part.number), [each.entry for each in part.shards], facts)


class _Facts(msgspec.Struct, frozen=True):
    num_samples: int
    num_bytes: int
    skipped: list[tuple[str, str]]
    encoded: EncodedSizes


async def load_part(records: Records, number: int) -> WrittenPart | None:
    """Reads the record of a part and the tails of its shards; None if something is missing or damaged."""
    found = await records.load_with_facts(part_name(number))
    if found is None:
        return None
    shards, facts = found
    try:
        known = msgspec.convert(facts, _Facts)
    except msgspec.ValidationError:
        return None
    if sum(each.entry.num_samples for each in shards) != known.num_samples:
        return None
    return WrittenPart(
        number=number,
        num_samples=known.num_samples,
        num_bytes=known.num_bytes,
        skipped=tuple(ImportProblem(name=name, reason=reason) for name, reason in known.skipped),
        shards=tuple(shards),
        encoded=known.encoded,
    )


def check_parts(parts: Sequence[IngestPart]) -> str:
    """Returns the name of the plan whose parts these are, each once.

    Raises:
        ConfigurationError: A part is missing or given twice, or the parts belong to several plans.
    """
    if not parts:
        raise ConfigurationError("there are no parts to commit")
    names = sorted({part.plan for part in parts})
    if len(names) > 1:
        raise ConfigurationError("the parts belong to different plans", got=names)
    numbers = [part.number for part in parts]
    repeated = sorted(number for number, count in Counter(numbers).items() if count > 1)
    if repeated:
        raise ConfigurationError("a part is given more than once", got=repeated[:10])
    missing = sorted(set(range(parts[0].num_parts)) - set(numbers))
    if missing:
        raise ConfigurationError("parts of the plan are missing", got=missing[:10], expected=parts[0].num_parts)
    return names[0]


def _plan_key(name: str) -> str:
    return f"{UNFINISHED_FOLDER}/{name}/plan.json"
