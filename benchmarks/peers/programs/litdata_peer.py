"""LitData: chunks by ``optimize``, StreamingDataset and StreamingDataLoader; or, with ``raw``, StreamingRawDataset.

Settings from its README (https://github.com/Lightning-AI/litData): ``chunk_bytes="64MB"``, the default of 0.2.76, and a
list of options for an S3-compatible endpoint. A file is kept as bytes and decoded in ``transform``, as with every peer.
StreamingRawDataset ("Stream raw datasets") reads one object per image, without conversion, with many downloads at once
in each worker of torch's DataLoader.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import litdata
from litdata.streaming import downloader

from benchmarks.peers.job import Job, Loader, StatefulLoader, Treat, collate, paths, torch_loader


def _read(found: list[Path], number: int) -> dict[str, Any]:
    return {"image": found[number].read_bytes(), "number": number}


def _transform(treat: Treat, sample: dict[str, Any]) -> Any:
    # Bytes may come as a view of a chunk, which a worker cannot send.
    return treat(bytes(sample["image"])), sample["number"]


def write(job: Job) -> None:
    """Writes chunks in the job's folder, in its order: one worker keeps it."""
    chunk_bytes = job.options.get("chunk_bytes", "64MB")
    options: dict[str, Any] = {"num_workers": 1, "reorder_files": False, "verbose": False}
    litdata.optimize(partial(_read, paths(job.photos)), job.order, job.folder, chunk_bytes=chunk_bytes, **options)


def open_loader(job: Job) -> Loader:
    """Makes dataset and loader, as its README combines them."""
    # Its fast client, obstore, otherwise refuses an http:// endpoint, and boto3 would take over.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    if job.options.get("raw"):
        return _open_raw(job)
    dataset = litdata.StreamingDataset(
        job.url,
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
        transform=partial(_transform, Treat(job)),
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=job.batch_size, num_workers=job.num_workers, collate_fn=collate
    )
    return StatefulLoader(loader, job)


class _Numbered(litdata.StreamingRawDataset):  # type: ignore[misc]
    """Gives (bytes, number): the number is the object's place in the listing."""

    def __getitems__(self, indices: list[int]) -> Any:
        return list(zip(super().__getitems__(indices), indices, strict=True))


def _open_raw(job: Job) -> Loader:
    # It lists by s3fs and reads by boto3's options, which call the keys otherwise: both find them here.
    os.environ |= {
        "AWS_ACCESS_KEY_ID": job.access_key_id,
        "AWS_SECRET_ACCESS_KEY": job.secret_access_key,
        "AWS_REGION": job.region,
    }
    dataset = _Numbered(
        f"{job.url}/",
        cache_dir=tempfile.mkdtemp(),  # where it keeps its index: by default in the home folder, from run to run
        recompute_index=True,
        storage_options={"endpoint_url": job.endpoint_url},
        transform=Treat(job),
    )
    numbers = [int(PurePosixPath(file.path).stem) for file in dataset.files]

    def put_together(samples: list[Any]) -> Any:
        return collate([(image, numbers[place]) for image, place in samples])

    return torch_loader(dataset, job, collate_fn=put_together)
