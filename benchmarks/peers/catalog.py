"""Who takes part in the peers' benchmark: which packages, which program, which settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Place = Literal["shards", "objects", "local"]


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer."""

    name: str  # as the command line and the JSON call it
    title: str  # as people do
    layout: str  # how its images lie: words for the report
    # ``shards``: in the bucket in a format that the peer writes; ``objects``: one object per image; ``local``: on the
    # local drive
    place: Place
    program: str  # module below `benchmarks.peers.programs`
    # its file below ``requirements/`` without ``.txt``; None runs in the project's own environment
    environment: str | None
    caches: bool = False  # whether it can keep on the local drive what it has fetched
    options: dict[str, Any] = field(default_factory=dict)  # settings that its program knows
    note: str = ""  # what a reader must know
    resumes: bool = False  # whether it has a state to go on from in the middle of an epoch
    writes_beside: bool = False  # whether it puts files of its own beside the objects: it gets objects for itself, then

    @property
    def is_ours(self) -> bool:
        """Whether it is what the others are compared with."""
        return self.program == "ours"

    @property
    def reads_files(self) -> bool:
        """Whether it reads the photographs themselves, on the local drive."""
        return self.options.get("client") == "files"


OURS = "ours"
PEERS = (
    Peer(OURS, "concurrent-loader", "shards, 8 MiB", "shards", "ours", None, True, {"layout": "shards"}, resumes=True),
    Peer("ours_objects", "concurrent-loader", "objects", "objects", "ours", None, False, {"layout": "objects"},
         resumes=True),
    Peer("ours_local", "concurrent-loader", "shards on the local drive", "local", "ours", None, False,
         {"layout": "local"}, "read where they lie, value by value, checked", resumes=True),
    Peer("local_files", "torch DataLoader", "files on the local drive", "local", "torch_items", None, False,
         {"client": "files"}),
    Peer("litdata", "LitData", "chunks, 64 MB", "shards", "litdata_peer", "litdata", True, {},
         "allow_http is set for its client obstore, or it would refuse the endpoint and fall back to boto3",
         resumes=True),
    Peer("litdata_8mb", "LitData", "chunks, 8 MB", "shards", "litdata_peer", "litdata", True,
         {"chunk_bytes": "8MB", "max_pre_download": 8}, "not its default: chunks as small as our shards, 8 ahead",
         resumes=True),
    Peer("litdata_raw", "LitData StreamingRawDataset", "objects", "objects", "litdata_peer", "litdata", False,
         {"raw": True}, writes_beside=True),
    Peer("mosaicml", "MosaicML Streaming", "MDS shards, 64 MiB", "shards", "mosaicml", "mosaicml", True, resumes=True),
    Peer("mosaicml_8mb", "MosaicML Streaming", "MDS shards, 8 MiB", "shards", "mosaicml", "mosaicml", True,
         {"shard_bytes": 8 << 20, "shuffle_block_size": 2000},
         "not its defaults: shards as small as ours, and a shuffle that does not wait for all of them", resumes=True),
    Peer("webdataset", "WebDataset", "tar files", "shards", "webdataset_tars", "webdataset", True),
    Peer("s3torchconnector", "s3torchconnector, map", "objects", "objects", "s3torchconnector_objects",
         "s3torchconnector"),
    Peer("s3torchconnector_iterable", "s3torchconnector, iterable", "objects", "objects", "s3torchconnector_objects",
         "s3torchconnector", False, {"iterable": True}, "the bucket's order: it does not shuffle"),
    Peer("torch_boto3", "torch DataLoader + boto3", "objects", "objects", "torch_items", "boto3", False,
         {"client": "boto3"}),
    Peer("torch_s3fs", "torch DataLoader + s3fs", "objects", "objects", "torch_items", "s3fs", False,
         {"client": "s3fs"}),
    Peer("hf_datasets", "Hugging Face datasets", "Parquet", "shards", "hf_datasets", "datasets", resumes=True),
    Peer("ray_data", "Ray Data", "Parquet", "shards", "ray_data", "ray"),
    Peer("spdl", "SPDL + boto3", "objects", "objects", "spdl_objects", "spdl"),
)  # fmt: skip


def find(name: str) -> Peer:
    """Returns the peer of that name, or raises ValueError."""
    for peer in PEERS:
        if peer.name == name:
            return peer
    raise ValueError(f"no peer is called {name!r}; there are {', '.join(peer.name for peer in PEERS)}")
