"""Ours: shards, raw objects, or shards on the local drive, through ConcurrentDataLoader at its defaults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from benchmarks.peers.images import SIZE, written
from benchmarks.peers.messages import Job
from concurrent_loader import ConcurrentDataLoader, ObjectDataset, RandomResizedCrop, ShardDataset
from concurrent_loader.storage import ShardWriter


def write(job: Job) -> None:
    """Shards of the default size, in the bucket or, with ``local``, in a folder."""
    columns = {"image": "jpeg", "number": "int64"}
    with ShardWriter(_url(job), columns=columns, overwrite=True, storage_options=_storage_options(job)) as writer:
        for number, data in written(job):
            writer.write({"image": data, "number": number})


def open_loader(job: Job) -> _Loader:
    """Dataset and loader."""
    return _Loader(job)


class _Loader:
    def __init__(self, job: Job) -> None:
        self._objects = job.options["layout"] == "objects"
        options: dict[str, Any] = {"storage_options": _storage_options(job), "cache_dir": job.cache_dir}
        self._dataset = (
            ObjectDataset(_url(job), **options)
            if self._objects
            else ShardDataset(_url(job), columns=("image", "number"), **options)
        )
        self._loader: ConcurrentDataLoader = ConcurrentDataLoader(
            self._dataset,
            batch_size=job.batch_size,
            shuffle=True,
            seed=job.seed,
            num_threads=job.num_workers,
            decode={"image": RandomResizedCrop(SIZE, flip=0.5)} if job.decoded else None,
        )
        if job.state is not None:
            self._loader.load_state_dict(job.state)

    def __iter__(self) -> Iterator[tuple[Any, Sequence[int]]]:
        for batch in self._loader:
            numbers = [int(PurePosixPath(key).stem) for key in batch["key"]] if self._objects else batch["number"]
            yield batch["image"], numbers

    def state(self) -> Any:
        return self._loader.state_dict()

    def close(self) -> None:
        self._dataset.close()


def _url(job: Job) -> str:
    return str(job.options["folder"]) if job.options["layout"] == "local" else f"s3://{job.bucket}/{job.prefix}"


def _storage_options(job: Job) -> dict[str, Any]:
    if job.options["layout"] == "local":
        return {}
    return {
        "endpoint_url": job.endpoint_url,
        "access_key_id": job.access_key_id,
        "secret_access_key": job.secret_access_key,
        "region": job.region,
    }
