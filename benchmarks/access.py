"""Who asks a bucket for what in a run of several epochs: ours as measured and scaled, others' as they document it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.bucket_requests import Requests

_PAGE_KEYS = 1000  # of a listing


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be read."""

    num_samples: int  # of the dataset
    sample_bytes: int  # of each
    num_epochs: int  # of a run

    @property
    def num_bytes(self) -> int:
        """Of the dataset."""
        return self.num_samples * self.sample_bytes


@dataclass(frozen=True, slots=True)
class Access:
    """How one system reads."""

    system: str  # its name
    # ``"measured"`` on the wire and scaled up, or ``"computed"`` from what is documented
    kind: Literal["measured", "computed"]
    note: str  # what a reader must know
    opening: Requests  # once a run
    first_epoch: Requests  # beside that
    later_epoch: Requests  # each

    def run(self, num_epochs: int) -> Requests:
        """All of a run."""
        return self.opening + self.first_epoch + self.later_epoch.times(num_epochs - 1)


@dataclass(frozen=True, slots=True)
class Measured:
    """What went over the wire for a dataset that was really read."""

    system: str  # how
    num_samples: int  # of that dataset
    opening: Requests  # until the dataset was open
    first_epoch: Requests  # all of it
    later_epoch: Requests  # of the epoch after it, in the same process


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """How large the files of others are."""

    webdataset_bytes: int = 3_000_000_000  # 3 GB is what ``webdataset.ShardWriter`` writes by default
    mds_bytes: int = 64 << 20  # 64 MiB is what ``streaming.MDSWriter`` writes by default
    litdata_bytes: int = 64_000_000  # litData has no default; 64 MB is what its documentation writes


def scaled(measured: Measured, workload: Workload, *, per_object: bool) -> Access:
    """Scales what was measured to a workload of the same size of samples.

    Epochs grow with the samples. So does opening where a listing is read (``per_object``); otherwise it is a listing of
    manifests, a HEAD and a GET whatever the dataset's size, of a manifest that grows with it.
    """
    factor = workload.num_samples / measured.num_samples
    opening = measured.opening.times(factor)
    if per_object:
        opening = Requests(lists=-(-workload.num_samples // _PAGE_KEYS))
    else:
        at_once = measured.opening
        opening = Requests(gets=at_once.gets, heads=at_once.heads, lists=at_once.lists, bytes=opening.bytes)
    return Access(
        measured.system,
        "measured",
        f"{measured.num_samples:,} samples measured on the wire, scaled by {factor:,.4g}",
        opening,
        measured.first_epoch.times(factor),
        measured.later_epoch.times(factor),
    )


def computed(workload: Workload, sizes: ChunkSizes) -> list[Access]:
    """What others ask for, by their documentation, at the least: no retries, no HEADs, no overlap between nodes.

    boto3's transfer manager, by which MDS and LitData may fetch, divides what is larger than 8 MB into several GETs;
    the rows count one a file, to their favour.
    """
    nothing = Requests()
    whole = Requests(gets=workload.num_samples, bytes=workload.num_bytes)
    pages = Requests(lists=-(-workload.num_samples // _PAGE_KEYS))
    index = Requests(gets=1)

    def files(chunk_bytes: int) -> Requests:
        return Requests(gets=-(-workload.num_bytes // chunk_bytes), bytes=workload.num_bytes)

    tar, mds, chunk = files(sizes.webdataset_bytes), files(sizes.mds_bytes), files(sizes.litdata_bytes)
    return [
        Access(
            "torch, objects",
            "computed",
            "one GET a sample, in every epoch; keys listed once (boto3, s3fs, s3torchconnector's map dataset)",
            pages,
            whole,
            whole,
        ),
        Access(
            "WebDataset",
            "computed",
            f"one GET a tar file of {sizes.webdataset_bytes / 1e6:,.0f} MB, in every epoch (no cache_dir)",
            nothing,
            tar,
            tar,
        ),
        Access(
            "MosaicML Streaming",
            "computed",
            f"one GET an MDS shard of {sizes.mds_bytes / 1e6:,.0f} MB, kept on the local drive for later epochs",
            index,
            mds,
            nothing,
        ),
        Access(
            "LitData",
            "computed",
            f"one GET a chunk of {sizes.litdata_bytes / 1e6:,.0f} MB, kept on the local drive for later epochs",
            index,
            chunk,
            nothing,
        ),
    ]
