"""The words between the process that times a side and the one that asked: what to do, and what came of it."""

from __future__ import annotations

from typing import Literal

import msgspec

Side = Literal["folder", "objects", "shards"]
Step = Literal["train", "decoded", "raw"]


class Request(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One epoch to time."""

    side: Side  # where the images come from
    step: Step  # what is done with them: trained on, only decoded and augmented, or taken as bytes
    location: str  # folder or URL
    num_classes: int  # of the dataset
    # for the two sides that live in a bucket, named as for `concurrent_loader.storage.open_store`
    storage_options: dict[str, str] = {}
    client: str = "auto"  # for shards, as for `concurrent_loader.storage.open_store`
    cache_dir: str | None = None  # for shards
    batch_size: int = 64  # images a batch
    num_workers: int = 2  # worker processes of torch's DataLoader
    seed: int = 0  # of order and weights
    limit: int | None = None  # for objects: that many of them only
    resident_bytes: int = 0  # page cache to put memory behind beforehand; see `benchmarks.machine.make_memory_resident`


class Epoch(msgspec.Struct, kw_only=True, frozen=True):
    """What came of it."""

    num_samples: int  # images delivered
    build_s: float  # to make the loader, before the epoch
    epoch_s: float  # from asking for the first batch to the end of the last step
    first_batch_s: float  # from the same start to the first batch
    waiting_s: float  # part of the epoch that the consumer spent waiting for batches
    num_gets: int  # requests for bytes from the bucket, from making the loader on
    num_bytes: int  # their body bytes
    dataset_bytes: int  # size of the side's dataset in the bucket; 0 for the folder
    cpu_s: float  # processor time of the process and its workers, imports left out
    peak_rss_mb: float  # highest resident memory of the process plus its workers' proportional share, in 10^6 bytes
    rss_added_mb: float  # by how much the process (workers left out) grew since the imports, at its highest
    first_loss: float | None  # mean over the first tenth of the steps; None without training
    last_loss: float | None  # mean over the last tenth
    accuracy: float | None  # over the last quarter, before learning from it
    class_counts: list[int]  # images delivered of each class
    digest: str | None  # of all delivered files whatever their order; None unless they were delivered as bytes
    client: str | None  # what talked to the bucket; None for the folder
    timeline: list[tuple[float, int]]  # seconds since the start and images done, after each step

    @property
    def samples_per_s(self) -> float:
        """Images a second over the whole epoch, its slow start included."""
        return self.num_samples / self.epoch_s

    @property
    def waiting_share(self) -> float:
        """Share of the epoch spent waiting for data, 0 … 1."""
        return self.waiting_s / self.epoch_s

    @property
    def cpu_s_per_1000(self) -> float:
        """Processor seconds for a thousand images."""
        return 1000 * self.cpu_s / self.num_samples


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line from the process that times: how far it is, or the result."""

    num_samples: int = 0
    epoch: Epoch | None = None
