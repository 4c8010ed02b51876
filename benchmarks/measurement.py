"""The words between the process that times a side and the one that asked: what to do, and what came of it."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Epoch", "Message", "Request", "Side", "Step"]

Side = Literal["folder", "objects", "shards"]
Step = Literal["train", "decoded", "raw"]


class Request(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One epoch to time.

    Attributes:
        side: Where the pictures come from.
        step: What is done with them: trained on, only decoded and augmented, or taken as bytes.
        location: Folder or URL.
        num_classes: Of the data set.
        storage_options: For the two sides that live in a bucket, named as for `concurrent_loader.storage.open_store`.
        client: For shards, as for `concurrent_loader.storage.open_store`.
        cache_dir: For shards.
        batch_size: Pictures a batch.
        num_workers: Worker processes of torch's DataLoader.
        seed: Of order and weights.
        limit: For objects: that many of them only.
        resident_bytes: Page cache to put memory behind beforehand; see `benchmarks.machine.make_memory_resident`.
    """

    side: Side
    step: Step
    location: str
    num_classes: int
    storage_options: dict[str, str] = {}
    client: str = "auto"
    cache_dir: str | None = None
    batch_size: int = 64
    num_workers: int = 2
    seed: int = 0
    limit: int | None = None
    resident_bytes: int = 0


class Epoch(msgspec.Struct, kw_only=True, frozen=True):
    """What came of it.

    Attributes:
        num_samples: Pictures delivered.
        build_s: To make the loader, before the epoch.
        epoch_s: From asking for the first batch to the end of the last step.
        first_batch_s: From the same start to the first batch.
        waiting_s: Part of the epoch that the consumer spent waiting for batches.
        num_gets: Requests for bytes from the bucket, from making the loader on.
        num_bytes: Their body bytes.
        dataset_bytes: Size of the side's data set in the bucket; 0 for the folder.
        cpu_s: Processor time of the process and its workers, imports left out.
        peak_rss_mb: Highest resident memory of the process plus its workers' proportional share, in 10^6 bytes.
        rss_added_mb: By how much the process (workers left out) grew since the imports, at its highest.
        first_loss: Mean over the first tenth of the steps; None without training.
        last_loss: Mean over the last tenth.
        accuracy: Over the last quarter, before learning from it.
        class_counts: Pictures delivered of each class.
        digest: Of all delivered files whatever their order; None unless they were delivered as bytes.
        client: What talked to the bucket; None for the folder.
        timeline: Seconds since the start and pictures done, after each step.
    """

    num_samples: int
    build_s: float
    epoch_s: float
    first_batch_s: float
    waiting_s: float
    num_gets: int
    num_bytes: int
    dataset_bytes: int
    cpu_s: float
    peak_rss_mb: float
    rss_added_mb: float
    first_loss: float | None
    last_loss: float | None
    accuracy: float | None
    class_counts: list[int]
    digest: str | None
    client: str | None
    timeline: list[tuple[float, int]]

    @property
    def samples_per_s(self) -> float:
        """Pictures a second over the whole epoch, its slow start included."""
        return self.num_samples / self.epoch_s

    @property
    def waiting_share(self) -> float:
        """Share of the epoch spent waiting for data, 0 … 1."""
        return self.waiting_s / self.epoch_s

    @property
    def cpu_s_per_1000(self) -> float:
        """Processor seconds for a thousand pictures."""
        return 1000 * self.cpu_s / self.num_samples


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line from the process that times: how far it is, or the result."""

    num_samples: int = 0
    epoch: Epoch | None = None
