"""What a bucket is asked for in a run of several epochs: counts to add up and scale, measured or as documented."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from concurrent_loader.storage.testing.faults.http_proxy import Exchange

Row = Mapping[str, Any]

_PAGE_KEYS = 1000  # of a listing
_BY_SAMPLE = 0.9  # GETs per sample from which on each sample is taken to be an object


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """How often, and for how many bytes, a bucket is asked."""

    gets: int = 0  # of objects and of ranges of them
    heads: int = 0
    lists: int = 0  # pages of a listing
    bytes: int = 0  # of the bodies of GETs

    @classmethod
    def on_the_wire(cls, exchanges: Iterable[Exchange]) -> Self:
        """Counts what went through a proxy; raises ValueError for anything but reading."""
        gets = heads = lists = num_bytes = 0
        for one in exchanges:
            method, query = one.request.method, one.request.query
            if method == "HEAD":
                heads += 1
            elif method == "GET" and "list-type=" in query:
                lists += 1
            elif method == "GET":
                gets += 1
                num_bytes += one.num_bytes
            else:
                raise ValueError(f"{method} {one.request.path}?{query} does not read")
        return cls(gets=gets, heads=heads, lists=lists, bytes=num_bytes)

    def __add__(self, other: Requests) -> Requests:
        return Requests(**{name: value + getattr(other, name) for name, value in asdict(self).items()})

    def times(self, factor: float) -> Requests:
        """Multiplies all counts, rounded up."""
        return Requests(**{name: math.ceil(value * factor) for name, value in asdict(self).items()})


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be read."""

    num_samples: int
    sample_bytes: int
    num_epochs: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the dataset."""
        return self.num_samples * self.sample_bytes


@dataclass(frozen=True, slots=True)
class Access:
    """How one system reads."""

    system: str
    kind: Literal["measured", "computed"]  # on the wire and scaled up, or from what is documented
    note: str
    opening: Requests  # once per run
    first_epoch: Requests  # beside opening
    later_epoch: Requests

    def run(self, num_epochs: int) -> Requests:
        """Returns the requests of a run."""
        return self.opening + self.first_epoch + self.later_epoch.times(num_epochs - 1)


@dataclass(frozen=True, slots=True)
class Measured:
    """What went over the wire for a dataset that was really read."""

    system: str
    num_samples: int
    opening: Requests
    first_epoch: Requests
    later_epoch: Requests  # the epoch after it, in the same process


CHUNK_SIZES = {
    "webdataset_bytes": 3_000_000_000,  # the default of ``webdataset.ShardWriter``
    "mds_bytes": 64 << 20,  # the default of ``streaming.MDSWriter``
    "litdata_bytes": 64_000_000,  # what its documentation writes; it has no default
}


def scaled(measured: Measured, workload: Workload, *, per_object: bool) -> Access:
    """Scales what was measured to a workload of the same size of samples.

    Epochs grow with the samples. So does opening where a listing is read (``per_object``). Otherwise opening lists
    manifests and reads one, which grows with the dataset, with one HEAD and one GET.
    """
    factor = workload.num_samples / measured.num_samples
    once = measured.opening
    opening = Requests(gets=once.gets, heads=once.heads, lists=once.lists, bytes=once.times(factor).bytes)
    if per_object:
        opening = Requests(lists=-(-workload.num_samples // _PAGE_KEYS))
    note = f"{measured.num_samples:,} samples measured on the wire, scaled by {factor:,.4g}"
    first, later = measured.first_epoch.times(factor), measured.later_epoch.times(factor)
    return Access(measured.system, "measured", note, opening, first, later)


def computed(workload: Workload) -> list[Access]:
    """Returns what others ask for, by their documentation, at the least: no retries, no HEADs, no overlap of nodes.

    boto3's transfer manager, by which MDS and LitData may fetch, divides what is larger than 8 MB into several GETs.
    The rows count one per file, in their favour.
    """
    nothing, index = Requests(), Requests(gets=1)
    whole = Requests(gets=workload.num_samples, bytes=workload.num_bytes)
    pages = Requests(lists=-(-workload.num_samples // _PAGE_KEYS))

    def kept(name: str, of: str) -> tuple[Requests, str]:
        size = CHUNK_SIZES[name]
        return Requests(gets=-(-workload.num_bytes // size), bytes=workload.num_bytes), of.format(size / 1e6)

    on_drive = "kept on the local drive for later epochs"
    tar, tar_note = kept("webdataset_bytes", "one GET a tar file of {:,.0f} MB, in every epoch (no cache_dir)")
    mds, mds_note = kept("mds_bytes", f"one GET an MDS shard of {{:,.0f}} MB, {on_drive}")
    chunk, chunk_note = kept("litdata_bytes", f"one GET a chunk of {{:,.0f}} MB, {on_drive}")
    each = "one GET a sample, in every epoch; keys listed once (boto3, s3fs, s3torchconnector's map dataset)"
    return [
        Access("torch, objects", "computed", each, pages, whole, whole),
        Access("WebDataset", "computed", tar_note, nothing, tar, tar),
        Access("MosaicML Streaming", "computed", mds_note, index, mds, nothing),
        Access("LitData", "computed", chunk_note, index, chunk, nothing),
    ]


def peer_accesses(report: Mapping[str, Any], workload: Workload) -> list[Access]:
    """Scales what other loaders were seen to ask for, from the figures of the benchmark of peers.

    The lowest latency of each peer counts. Ours is left out, because it is counted again. So is what failed in all
    turns, or was not read to its end. Where samples are objects, GETs grow with the samples; where they are in files,
    with the bytes, if the report has ``sample_bytes``. A peer without a warm epoch reads every epoch like the first.
    """
    epochs: dict[tuple[str, str], dict[str, Row]] = {}
    for row in sorted(filter(_counts, report["rows"]), key=lambda row: float(row["latency_ms"] or 0)):
        epochs.setdefault((row["peer"], row["layout"]), {}).setdefault(row["epoch"], row)
    sample_bytes = report.get("sample_bytes")
    return [
        _peer_access(peer, layout, found, sample_bytes, workload)
        for (peer, layout), found in sorted(epochs.items())
        if "cold" in found
    ]


def _counts(row: Row) -> bool:
    if row["kind"] != "raw" or row["peer"].startswith("ours"):
        return False
    if row.get("error") and not row.get("rounds"):  # a peer that failed some of its turns has been counted all the same
        return False
    return bool(row.get("of_samples")) and None not in (row.get("gets"), row.get("bytes_ratio"))


def _peer_access(
    peer: str, layout: str, epochs: Mapping[str, Row], sample_bytes: float | None, workload: Workload
) -> Access:
    cold, warm = epochs["cold"], epochs.get("warm", epochs["cold"])
    by_sample = cold["gets"] >= _BY_SAMPLE * cold["of_samples"]
    larger = 1.0 if by_sample or sample_bytes is None else workload.sample_bytes / sample_bytes

    def times(row: Row) -> Requests:
        factor = workload.num_samples / row["of_samples"] * larger
        return Requests(gets=round(row["gets"] * factor), bytes=round(row["bytes_ratio"] * workload.num_bytes))

    notes = [
        f"{cold['of_samples']:,} samples measured at {cold['latency_ms']:g} ms",
        "scaled by samples" + ("" if larger == 1.0 else f", each {larger:.3g} times as large"),
        "opening is in the first epoch, lists and HEADs are not counted",
        *(["no warm epoch was measured"] if "warm" not in epochs else []),
    ]
    return Access(f"{peer}, {layout}", "measured", "; ".join(notes), Requests(), times(cold), times(warm))


# -- prices ------------------------------------------------------------------------------------------------------------

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices of one store, in US dollars."""

    store: str  # which, and where it is read from
    get_per_million: float  # GETs and HEADs
    list_per_million: float  # LISTs, of up to 1,000 keys each
    read_per_gib: float  # retrieval and transfer
    source: str  # where the price stands; the page decides, not this table
    note: str  # for which region and class, and what is left out
    confirmed: str  # where the figures were last found, and which of them were not

    def dollars(self, requests: Requests) -> float:
        """Returns what these requests cost."""
        return (
            (requests.gets + requests.heads) * self.get_per_million / 1e6
            + requests.lists * self.list_per_million / 1e6
            + requests.bytes / _GIB * self.read_per_gib
        )


_TABLE = tomllib.loads(Path(__file__).with_name("prices.toml").read_text(encoding="utf-8"))
PRICES_AS_OF: str = _TABLE["as_of"]
PRICES = tuple(Price(**entry) for entry in _TABLE["price"])
