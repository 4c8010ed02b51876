"""Ours: shards, raw objects, or shards on the local drive, through ConcurrentDataLoader at its defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from benchmarks.peers.job import Fetched, Job, StatefulLoader, Treat, written
from concurrent_loader import ConcurrentDataLoader, ObjectDataset, RandomResizedCrop, ShardDataset
from concurrent_loader.storage import ShardWriter


def write(job: Job) -> None:
    """Writes shards of the default size, in the bucket or, with ``local``, in a folder."""
    image, number_column = _columns(job)
    number_type = job.options.get("number_type", "int64")
    columns = {image: "jpeg", number_column: number_type}
    url, options = _place(job)
    with ShardWriter(url, columns=columns, overwrite=True, storage_options=options) as writer:
        for number, data in written(job):
            writer.write({image: data, number_column: f"{number:07d}" if number_type == "str" else number})


def open_loader(job: Job) -> StatefulLoader:
    """Makes dataset and loader."""
    return _Loader(job)


class _Loader(StatefulLoader):
    def __init__(self, job: Job) -> None:
        self._objects = job.options["layout"] == "objects"
        self._image, self._number = _columns(job)
        url, storage_options = _place(job)
        options: dict[str, Any] = {"storage_options": storage_options, "cache_dir": job.cache_dir}
        self._dataset = (
            ObjectDataset(url, **options)
            if self._objects
            else ShardDataset(url, columns=(self._image, self._number), **options)
        )
        augment = Treat(job)
        by_transform = bool(job.options.get("transform"))  # the augmentation of torch's side, instead of our own
        crop: Any = "rgb" if by_transform else RandomResizedCrop(job.size, scale=(job.min_scale, 1.0), flip=0.5)

        def transform(sample: dict[str, Any]) -> dict[str, Any]:
            return {**sample, self._image: augment.augment(sample[self._image])}

        loader = ConcurrentDataLoader(
            self._dataset, job.batch_size, shuffle=True, seed=job.seed, num_threads=job.num_workers,
            decode={self._image: crop} if job.decoded else None,
            transform=transform if job.decoded and by_transform else None,
        )  # fmt: skip
        super().__init__(loader, job)

    def __iter__(self) -> Iterator[tuple[Any, Sequence[int]]]:
        for batch in self._loader:
            numbers = [int(PurePosixPath(key).stem) for key in batch["key"]] if self._objects else batch[self._number]
            yield batch[self._image], numbers

    def fetched(self) -> Fetched | None:
        if not isinstance(self._dataset, ShardDataset):
            return None
        stats, client = self._dataset.fetch_stats, type(self._dataset.reader.engine.store).__name__
        dataset_bytes = self._dataset.manifest.num_bytes
        return Fetched(gets=stats.num_gets, num_bytes=stats.num_bytes, dataset_bytes=dataset_bytes, client=client)

    def close(self) -> None:
        self._dataset.close()


def _columns(job: Job) -> tuple[str, str]:
    """Returns the columns of images and of their numbers, which are texts in some formats that are adopted."""
    image, number = job.options.get("columns", ("image", "number"))
    return image, number


def _place(job: Job) -> tuple[str, dict[str, Any]]:
    if job.options["layout"] == "local":
        return job.options["folder"], {}
    return job.url, job.storage_options
