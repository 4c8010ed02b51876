"""The words between the benchmark and the process, in a peer's own environment, that it times."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Task = Literal["write", "epoch"]


class Job(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a peer is to do."""

    peer: str  # module below `benchmarks.peers.programs`
    task: Task  # write the images into the bucket in the peer's format, or read an epoch of them
    photos: str  # folder of the images: one folder a class
    # row of numbers: the image that is written at each place. An image's number is its place in the sorted list of
    # all paths; every format keeps it beside the image, and the peers deliver it as its label
    order: list[int] = []
    endpoint_url: str = ""  # of the S3 server
    access_key_id: str = ""  # its key
    secret_access_key: str = ""  # its secret
    region: str = "us-east-1"  # its region
    bucket: str = ""  # name
    prefix: str = ""  # of all that the peer has in it, without slashes at the ends
    # where ``write`` may put files that then go into the bucket below the prefix; a peer that puts them there itself
    # leaves it empty
    folder: str = ""
    urls: list[str] = []  # signed URLs of the peer's objects, for those who fetch by them
    options: dict[str, Any] = {}  # settings of the peer, from the catalogue
    cache_dir: str | None = None  # for a peer that keeps what it has fetched; None for others
    # whether images are decoded to uint8 (N, 3, 224, 224), a random crop of each, or delivered as bytes
    decoded: bool = False
    batch_size: int = 256  # images a batch
    num_workers: int = 2  # worker processes, or threads where the peer has threads
    seed: int = 0  # of the order
    limit_s: float | None = None  # stop after so long; the images that have come by then are the result
    num_batches: int | None = None  # stop after so many
    state: Any = None  # what ``state`` of an earlier outcome was: go on from there
    resident_bytes: int = 0  # page cache to put memory behind beforehand; see `benchmarks.machine.make_memory_resident`


class Outcome(msgspec.Struct, kw_only=True, frozen=True):
    """What came of it."""

    numbers: list[int] = []  # of the images, in the order of their coming
    batch_sizes: list[int] = []  # images in each batch
    # sum over the images of XXH3-128 of their bytes, seeded by their number, modulo 2^128, in hexadecimal: the same
    # for the same images in any order. Empty for decoded ones
    digest: str = ""
    build_s: float = 0.0  # from the first call of the peer (imports left out) to a loader that can be iterated
    first_batch_s: float = 0.0  # from there, too, to the first batch
    half_s: float = 0.0  # to half of the images
    epoch_s: float = 0.0  # to the last batch
    cpu_s: float = 0.0  # processor time of the process and all it has started, in the same time, its end included
    complete: bool = True  # whether the epoch came to its end
    state: Any = None  # what the peer says of its position, where it can
