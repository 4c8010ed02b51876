"""The words between the benchmark and the process, in a peer's own environment, that it times."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = ["Job", "Outcome", "Task"]

Task = Literal["write", "epoch"]


class Job(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a peer is to do.

    Attributes:
        peer: Module below `benchmarks.peers.programs`.
        task: Write the pictures into the bucket in the peer's format, or read an epoch of them.
        photos: Folder of the pictures: one folder a class.
        order: Row of numbers: the picture that is written at each place. A picture's number is its place in the sorted
            list of all paths; every format keeps it beside the picture, and the peers deliver it as its label.
        endpoint_url: Of the S3 server.
        access_key_id: Its key.
        secret_access_key: Its secret.
        region: Its region.
        bucket: Name.
        prefix: Of all that the peer has in it, without slashes at the ends.
        folder: Where ``write`` may put files that then go into the bucket below the prefix; a peer that puts them there
            itself leaves it empty.
        urls: Signed URLs of the peer's objects, for those who fetch by them.
        options: Settings of the peer, from the catalogue.
        cache_dir: For a peer that keeps what it has fetched; None for others.
        decoded: Whether pictures are decoded to uint8 (N, 3, 224, 224), a random crop of each, or delivered as bytes.
        batch_size: Pictures a batch.
        num_workers: Worker processes, or threads where the peer has threads.
        seed: Of the order.
        limit_s: Stop after so long; the pictures that have come by then are the result.
        num_batches: Stop after so many.
        state: What ``state`` of an earlier outcome was: go on from there.
        resident_bytes: Page cache to put memory behind beforehand; see `benchmarks.machine.make_memory_resident`.
    """

    peer: str
    task: Task
    photos: str
    order: list[int] = []
    endpoint_url: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    region: str = "us-east-1"
    bucket: str = ""
    prefix: str = ""
    folder: str = ""
    urls: list[str] = []
    options: dict[str, Any] = {}
    cache_dir: str | None = None
    decoded: bool = False
    batch_size: int = 256
    num_workers: int = 2
    seed: int = 0
    limit_s: float | None = None
    num_batches: int | None = None
    state: Any = None
    resident_bytes: int = 0


class Outcome(msgspec.Struct, kw_only=True, frozen=True):
    """What came of it.

    Attributes:
        numbers: Of the pictures, in the order of their coming.
        batch_sizes: Pictures in each batch.
        digest: Sum over the pictures of XXH3-128 of their bytes, seeded by their number, modulo 2^128, in hexadecimal:
            the same for the same pictures in any order. Empty for decoded ones.
        build_s: From the first call of the peer (imports left out) to a loader that can be iterated.
        first_batch_s: From there, too, to the first batch.
        half_s: To half of the pictures.
        epoch_s: To the last batch.
        cpu_s: Processor time of the process and all it has started, in the same time, its end included.
        complete: Whether the epoch came to its end.
        state: What the peer says of its position, where it can.
    """

    numbers: list[int] = []
    batch_sizes: list[int] = []
    digest: str = ""
    build_s: float = 0.0
    first_batch_s: float = 0.0
    half_s: float = 0.0
    epoch_s: float = 0.0
    cpu_s: float = 0.0
    complete: bool = True
    state: Any = None
