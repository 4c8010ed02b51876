"""LitData: chunks by ``optimize``, StreamingDataset and StreamingDataLoader.

Settings from its README (https://github.com/Lightning-AI/litData): ``chunk_bytes="64MB"``, the default of 0.2.76, and a
list of options for an S3-compatible endpoint. A file is kept as bytes and decoded in ``transform``, as with every peer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import litdata
from litdata.streaming import downloader

from benchmarks.peers.images import Treat, collate, paths
from benchmarks.peers.messages import Job


class _Read:
    """Image of a number; a class, for it is pickled."""

    def __init__(self, job: Job) -> None:
        self._paths = paths(job.photos)

    def __call__(self, number: int) -> dict[str, Any]:
        return {"image": self._paths[number].read_bytes(), "number": number}


class _Transform:
    def __init__(self, job: Job) -> None:
        self._treat = Treat(job)

    def __call__(self, sample: dict[str, Any]) -> Any:
        # Bytes may come as a view of a chunk, which a worker cannot send.
        return self._treat(bytes(sample["image"])), sample["number"]


def write(job: Job) -> None:
    """Chunks in the job's folder, in its order: one worker keeps it."""
    litdata.optimize(
        _Read(job),
        job.order,
        job.folder,
        chunk_bytes=job.options.get("chunk_bytes", "64MB"),
        num_workers=1,
        reorder_files=False,
        verbose=False,
    )


def open_loader(job: Job) -> _Loader:
    """Dataset and loader, as its README combines them."""
    return _Loader(job)


class _Loader:
    def __init__(self, job: Job) -> None:
        permit_http()
        dataset = litdata.StreamingDataset(
            f"s3://{job.bucket}/{job.prefix}",
            cache_dir=job.cache_dir,
            shuffle=True,
            drop_last=False,
            seed=job.seed,
            storage_options={
                "endpoint_url": job.endpoint_url,
                "aws_access_key_id": job.access_key_id,
                "aws_secret_access_key": job.secret_access_key,
                "region_name": job.region,
            },
            max_pre_download=job.options.get("max_pre_download", 2),
            transform=_Transform(job),
        )
        self._loader = litdata.StreamingDataLoader(
            dataset, batch_size=job.batch_size, num_workers=job.num_workers, collate_fn=collate
        )
        if job.state is not None:
            self._loader.load_state_dict(job.state)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def state(self) -> Any:
        return self._loader.state_dict()

    def close(self) -> None:
        del self._loader


def permit_http() -> None:
    """Lets its fast client, obstore, talk to an http:// endpoint, which it otherwise refuses: boto3 would take over."""
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
