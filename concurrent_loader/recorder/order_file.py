"""Stores everything that the order of an epoch depends on, so that a proof needs neither the bucket nor the script.

An ``order-DIGEST.json`` holds the numbers of samples per shard, the selected samples, and the options of the order. Its
name is the digest of its content, which every log names in its hash chain. The manifest's digest in it covers the
digests of all shards, and these cover every value.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import zstandard

from concurrent_loader.datasets.mixture import Mixture
from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.datasets.shard_dataset import ShardDataset
from concurrent_loader.datasets.views import DatasetView, Selectable
from concurrent_loader.order.batching import Batches
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.listed_plan import BatchListPlan
from concurrent_loader.order.mixture_plan import MixturePlan
from concurrent_loader.order.options import PlanOptions
from concurrent_loader.order.packed_plan import PackedPlan
from concurrent_loader.order.packing import Rows
from concurrent_loader.order.protocol import BatchIndex, Plan
from concurrent_loader.storage.errors import ConfigurationError, FormatError

__all__ = ["Part", "RecordedOrder", "encode_order", "read_order", "write_order"]

Indices = npt.NDArray[np.int64]

_EPOCH_OPTIONS = ("global_batch_size", "seed", "groups", "shuffle", "window", "last_batch", "fingerprint")
_LIST_OPTIONS = ("global_batch_size", "seed", "groups", "shuffle", "window", "fingerprint")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A dataset of a recorded run.

    Attributes:
        url: URL of the dataset.
        snapshot: Number of the snapshot; None for raw objects.
        digest: Digest of the snapshot's manifest, or fingerprint of the listing.
        content: What pins the bytes: ``"digests"`` of shards and values; ``"etags"`` of raw objects; ``"lengths"`` and
            ETags of data that was adopted by its headers only.
        num_samples: Number of samples in the dataset.
        numbers: (n,) int64, ascending numbers of the samples in the epoch; None for all samples once.
    """

    url: str
    snapshot: int | None
    digest: str
    content: str
    num_samples: int
    numbers: Indices | None


@dataclass(frozen=True, slots=True, eq=False)
class RecordedOrder:
    """The order of an epoch as a log names it.

    Attributes:
        parts: Datasets: one, or those of a mixture.
        options: Kind and arguments of the plan.
    """

    parts: tuple[Part, ...]
    options: dict[str, Any]

    @property
    def identity(self) -> str:
        """Text that is equal for the same samples in the same order, also in a converted copy of the dataset."""
        return json.dumps(self.options, sort_keys=True)

    def plan(self, epoch: int) -> Plan:
        """Returns the order of an epoch.

        Raises:
            ConfigurationError: The order cannot be computed again without the dataset.
        """
        return _decode_plan(self.options, epoch)

    def samples(self, index: BatchIndex) -> Indices:
        """Returns the numbers of a batch's samples in their datasets: (n,) int64."""
        samples = index.sample.copy()
        for number, part in enumerate(self.parts):
            if part.numbers is not None:
                own = slice(None) if index.source is None else index.source == number
                samples[own] = part.numbers[samples[own]]
        return samples


def encode_order(dataset: LoadableDataset, options: PlanOptions, epoch: int) -> bytes:
    """Returns the content of an order file: JSON.

    Args:
        dataset: Dataset of the loader.
        options: Options of the order.
        epoch: Epoch; with ``sampling`` or ``batching`` each has a file of its own.
    """
    children: Sequence[Selectable]
    if isinstance(dataset, Mixture):
        children = dataset.datasets
    else:
        assert isinstance(dataset, Selectable)
        children = (dataset.drawn(options, epoch),)
    content = {
        "format": 1,
        "parts": [_encode_part(child) for child in children],
        "order": _encode_plan(dataset.plan(options, epoch)),
    }
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def write_order(folder: Path, content: bytes) -> str:
    """Writes an order file, unless it exists; returns its digest."""
    digest = _digest(content)
    path = folder / f"order-{digest}.json"
    if not path.exists():
        partial = path.with_suffix(f".{uuid4().hex}.part")
        partial.write_bytes(content)
        partial.replace(path)
    return digest


def read_order(folder: Path, digest: str) -> RecordedOrder:
    """Reads an order file.

    Raises:
        FormatError: The file does not exist, does not have the digest, or is not an order.
    """
    name = f"order-{digest}.json"
    try:
        content = (folder / name).read_bytes()
    except FileNotFoundError:
        raise FormatError("the file of the order is missing", key=name) from None
    if _digest(content) != digest:
        raise FormatError("the file of the order was changed", key=name)
    try:
        data = json.loads(content)
        if data["format"] != 1:
            raise FormatError("the file of the order was written by a newer release", key=name)
        parts = [Part(**{**part, "numbers": _unpack(part["numbers"])}) for part in data["parts"]]
        return RecordedOrder(tuple(parts), data["order"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"the file of the order is damaged: {error}", key=name) from error


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _encode_part(dataset: Selectable) -> dict[str, Any]:
    base = dataset.stored[0]
    part: dict[str, Any] = {"url": base.url, "num_samples": len(base), "numbers": None}
    if isinstance(dataset, DatasetView) and len(dataset) and dataset.fingerprint != base.fingerprint:
        part["numbers"] = _pack(dataset.sample_numbers)
    if isinstance(base, ShardDataset):
        lacks_digests = bool((base.manifest.table.num_chunks == 0).any())
        content = "lengths" if lacks_digests else "digests"
        return part | {"snapshot": base.manifest.snapshot, "digest": base.manifest.digest, "content": content}
    return part | {"snapshot": None, "digest": f"{base.fingerprint:016x}", "content": "etags"}


def _encode_plan(plan: object) -> dict[str, Any]:
    if isinstance(plan, EpochPlan):
        facts = {name: getattr(plan, name) for name in _EPOCH_OPTIONS}
        return {"kind": "epoch", "samples_per_shard": _pack(np.asarray(plan.samples_per_unit)), **facts}
    if isinstance(plan, MixturePlan):
        return {
            "kind": "mixture", "children": [_encode_child(plan, number) for number in range(len(plan.children))],
            "shares": [share.hex() for share in plan.shares], "per": plan.per, "stop": plan.stop, "seed": plan.seed,
            "shuffle": plan.shuffle, "phases": [[first, [share.hex() for share in row]] for first, row in plan.phases],
        }  # fmt: skip
    if isinstance(plan, BatchListPlan | PackedPlan):
        facts = {name: getattr(plan, name) for name in _LIST_OPTIONS}
        lists = _encode_lists(plan.draw(plan.epoch))
        more = {"kind": "packed", "last_batch": plan.last_batch} if isinstance(plan, PackedPlan) else {"kind": "listed"}
        return {**more, "bounds": _pack(plan.bounds), "lists": lists, **facts}
    return {"kind": type(plan).__name__}


def _encode_child(plan: MixturePlan, number: int) -> dict[str, Any]:
    """Returns the order of a mixture's dataset; of packed rows, with the rows of each of its epochs in this epoch."""
    child, turns = plan.children[number], plan.turns[number]
    if isinstance(child, EpochPlan):
        return _encode_plan(child)
    first, last = plan.epoch * turns // child.max_steps, ((plan.epoch + 1) * turns - 1) // child.max_steps
    data = _encode_plan(plan.child_plan(number, first))
    return data | {"lists": {str(own): _encode_lists(child.draw(own)) for own in range(first, last + 1)}}


def _encode_lists(drawn: Batches | Rows) -> dict[str, Any]:
    return {name: _pack(array) for name, array in asdict(drawn).items()}


def _decode_plan(data: dict[str, Any], epoch: int) -> EpochPlan | MixturePlan | BatchListPlan | PackedPlan:
    kind = data.get("kind")
    if kind == "epoch":
        shards = _unpack(data["samples_per_shard"])
        return EpochPlan(samples_per_unit=shards, epoch=epoch, **{name: data[name] for name in _EPOCH_OPTIONS})
    if kind == "mixture":
        children = tuple(_decode_child(child) for child in data["children"])
        return MixturePlan(
            children=children, shares=_shares(data["shares"]), per=data["per"], stop=data["stop"], epoch=epoch,
            seed=data["seed"], shuffle=data["shuffle"],
            phases=tuple((first, _shares(row)) for first, row in data["phases"]),
        )  # fmt: skip
    if kind in ("listed", "packed"):
        facts: dict[str, Any] = {name: data[name] for name in _LIST_OPTIONS}
        facts |= {"bounds": _unpack(data["bounds"]), "epoch": epoch}
        lists: dict[str, Any] = {name: _unpack(array) for name, array in data["lists"].items()}
        if kind == "listed":
            return BatchListPlan(draw=lambda _: Batches(**lists), **facts)
        return PackedPlan(draw=lambda _: Rows(**lists), last_batch=data["last_batch"], **facts)
    raise ConfigurationError("the order of this run cannot be computed again: it was recorded without it", got=kind)


def _decode_child(data: dict[str, Any]) -> EpochPlan | PackedPlan:
    if data["kind"] != "packed":
        plan = _decode_plan(data, 0)
    else:
        every = {
            int(epoch): {name: _unpack(array) for name, array in lists.items()}
            for epoch, lists in data["lists"].items()
        }
        first = min(every)
        plan = _decode_plan({**data, "lists": data["lists"][str(first)]}, first)
        assert isinstance(plan, PackedPlan)
        plan = replace(plan, draw=lambda epoch: Rows(**every[epoch]))
    assert isinstance(plan, EpochPlan | PackedPlan)
    return plan


def _shares(texts: Sequence[str]) -> tuple[float, ...]:
    return tuple(map(float.fromhex, texts))


def _pack(array: Indices) -> dict[str, Any]:
    """Returns numbers as JSON: their differences, compressed."""
    steps = np.diff(np.asarray(array, np.int64), prepend=0).astype("<i8")
    packed = zstandard.ZstdCompressor(level=3).compress(steps.tobytes())
    return {"count": len(array), "zstd": base64.b64encode(packed).decode()}


def _unpack(data: dict[str, Any] | None) -> Any:
    if data is None:
        return None
    packed = base64.b64decode(data["zstd"], validate=True)
    if not 0 <= data["count"] < 1 << 40 or zstandard.get_frame_parameters(packed).content_size != 8 * data["count"]:
        raise ValueError("a list of numbers does not have its length")
    return np.cumsum(np.frombuffer(zstandard.ZstdDecompressor().decompress(packed), "<i8"), dtype=np.int64)
