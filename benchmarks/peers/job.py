"""What a peer's process is told and answers, and what all peers have in common there.

Only what the peers' environments have is imported here: msgspec, torch and torchvision. `benchmarks.adopt` and
`benchmarks.remote_vs_local` give jobs as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from benchmarks.training import Lesson, augmentation, decode_rgb

STORE_OPTIONS = ("endpoint_url", "access_key_id", "secret_access_key", "region")


class Job(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a peer is to do."""

    peer: str  # module below `benchmarks.peers.programs`
    task: Literal["write", "epoch"] = "epoch"  # write the images in the peer's format, or read an epoch of them
    photos: str  # folder of the images: one folder per class
    # The image that is written at each place. An image's number is its place in the sorted list of all paths; every
    # format keeps it beside the image, and the peers deliver it as its label.
    order: list[int] = []
    endpoint_url: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    region: str = "us-east-1"
    bucket: str = ""
    prefix: str = ""  # of all that the peer has in the bucket, without slashes at the ends
    folder: str = ""  # for files of ``write`` that then go into the bucket; empty if the peer puts them there itself
    urls: list[str] = []  # signed, of the peer's objects, for those who fetch by them
    options: dict[str, Any] = {}  # from the catalogue
    cache_dir: str | None = None  # for a peer that keeps what it has fetched
    decoded: bool = False  # to uint8 (N, 3, size, size), a random crop of each; otherwise delivered as bytes
    size: int = 224
    min_scale: float = 0.08  # least share of an image's area that a crop has
    train: bool = False  # a step of a small network on each decoded batch; an image's folder is its class
    batch_size: int = 256
    num_workers: int | None = 2  # worker processes, or threads where the peer has threads; None for the peer's default
    seed: int = 0
    limit_s: float | None = None  # stop after so long; the images that have come by then are the result
    num_batches: int | None = None  # stop after so many
    state: Any = None  # of an earlier outcome: go on from there
    accelerators: int = 0  # emulated ones, each of which takes a batch in every step; none: as fast as batches come
    computation_s: float = 0.0  # that they compute in a step
    resident_bytes: int = 0  # page cache to put memory behind beforehand; see `benchmarks.machine.make_memory_resident`

    @property
    def url(self) -> str:
        """URL of all that the peer has in the bucket."""
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def storage_options(self) -> dict[str, str]:
        """Options of a store of ours that lead to the bucket."""
        return {name: getattr(self, name) for name in STORE_OPTIONS}

    @property
    def s3fs_options(self) -> dict[str, Any]:
        """Options of s3fs that lead to the bucket."""
        places = {"endpoint_url": self.endpoint_url, "region_name": self.region}
        return {"key": self.access_key_id, "secret": self.secret_access_key, "client_kwargs": places}


class Fetched(msgspec.Struct, kw_only=True, frozen=True):
    """Requests of a loader that counts them."""

    gets: int  # from making the loader on
    num_bytes: int  # bodies of these GETs
    dataset_bytes: int  # in the bucket
    client: str  # class of the store


class Outcome(msgspec.Struct, kw_only=True, frozen=True):
    """What came of it; times count from the first call of the peer, without imports."""

    numbers: list[int] = []  # of the images, in the order in which they came
    batch_sizes: list[int] = []
    # Sum over the images of XXH3-128 of their bytes, seeded by their number, modulo 2^128, in hexadecimal: the same for
    # the same images in any order. Empty for decoded ones.
    digest: str = ""
    build_s: float = 0.0  # to a loader that can be iterated
    first_batch_s: float = 0.0
    half_s: float = 0.0  # to half of the images
    epoch_s: float = 0.0  # to the last batch
    cpu_s: float = 0.0  # of the process and all that it started, in the same time, its end included
    complete: bool = True  # whether the epoch came to its end
    state: Any = None  # the peer's position, where it has one
    waiting_s: float = 0.0  # part of the epoch that the consumer spent waiting for batches
    peak_rss_mb: float = 0.0  # of the process, plus its workers' proportional share
    rss_added_mb: float = 0.0  # by which the process without workers grew since the imports, at its highest
    lesson: Lesson | None = None  # of a network that was trained
    fetched: Fetched | None = None  # what the peer itself has counted
    # Share of the time, from the first step's batches on, that the accelerators computed; None without a whole step.
    utilisation: float | None = None
    spans: list[tuple[float, float]] = []  # when each batch or item was begun and there, where that is known

    @property
    def samples_s(self) -> float:
        """Images per second, with the time to make the loader."""
        return len(self.numbers) / self.epoch_s

    @property
    def samples_s_core(self) -> float:
        """Images per second of processor time."""
        return len(self.numbers) / self.cpu_s

    @property
    def cpu_s_per_1000(self) -> float:
        """Processor seconds per thousand images."""
        return 1000 * self.cpu_s / len(self.numbers)


def paths(folder: str) -> list[Path]:
    """Returns all images; an image's number is its place here."""
    return sorted(Path(folder).glob("*/*.jpg"))


def written(job: Job) -> Iterator[tuple[int, bytes]]:
    """Yields number and file of each image, in the order in which every format gets them."""
    found = paths(job.photos)
    for number in job.order:
        yield number, found[number].read_bytes()


class Treat:
    """Decodes and augments as torch users do, or leaves a file as it is; a class, for workers may get it pickled."""

    def __init__(self, job: Job) -> None:
        self._decoded = job.decoded
        self.augment = augmentation(job.size, job.min_scale)  # uint8 (3, H, W) → (3, size, size)

    def __call__(self, data: bytes) -> Tensor | bytes:
        if not self._decoded:
            return data
        return self.augment(decode_rgb(data))


def treat_fields(treat: Treat, image: str, number: str, sample: dict[str, Any]) -> tuple[Tensor | bytes, int]:
    """Treats a sample of a peer's dataset; returns its image and its number, which are below these names."""
    return treat(sample[image]), int(sample[number])


def collate(samples: list[tuple[Tensor | bytes, int]]) -> tuple[Tensor | list[Tensor | bytes], Tensor]:
    """Makes a batch of images and numbers."""
    images, numbers = zip(*samples, strict=True)
    return torch.stack(images) if isinstance(images[0], Tensor) else list(images), torch.tensor(numbers)


class Loader:
    """A peer's loader, ready to be iterated: yields images (files, or a tensor) and their numbers, batch by batch."""

    spans: Sequence[tuple[float, float]] = ()

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def state(self) -> Any:
        """Returns the position, as JSON can carry it; None where the peer has no such thing."""

    def fetched(self) -> Fetched | None:
        """Returns what the peer has counted; None where it counts nothing."""

    def close(self) -> None:
        """Ends workers and connections, as a training script would at its end."""
        del self._loader


class StatefulLoader(Loader):
    """A loader with ``state_dict`` and ``load_state_dict``, which goes on from the state of its job."""

    def __init__(self, loader: Any, job: Job) -> None:
        super().__init__(loader)
        if job.state is not None:
            loader.load_state_dict(job.state)

    def state(self) -> Any:
        return self._loader.state_dict()


def torch_loader(dataset: Dataset[Any], job: Job, *, collate_fn: Any = collate) -> Loader:
    """Puts torch's DataLoader around a dataset of (image, number), with the settings that serve it best here."""
    shuffle = None if isinstance(dataset, IterableDataset) else True
    generator = torch.Generator().manual_seed(job.seed)
    return Loader(DataLoader(dataset, **batching(job, collate_fn), shuffle=shuffle, generator=generator))


def batching(job: Job, collate_fn: Any = collate) -> dict[str, Any]:
    """Returns arguments of torch's DataLoader, and of loaders that are made like it."""
    prefetch_factor = 4 if job.num_workers else None
    return {
        "batch_size": job.batch_size, "num_workers": job.num_workers or 0, "prefetch_factor": prefetch_factor,
        "collate_fn": collate_fn,
    }  # fmt: skip
