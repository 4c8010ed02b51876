"""s3torchconnector's S3MapDataset: one object per image, by AWS's own native client, in torch's DataLoader.

https://github.com/awslabs/s3-connector-for-pytorch: `from_prefix`, a transform that reads, path style for an endpoint
that is not AWS's. ``iterable`` takes S3IterableDataset, whose order is the bucket's.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from s3torchconnector import S3ClientConfig, S3IterableDataset, S3MapDataset, S3ReaderConstructor

from benchmarks.peers.job import Job, Loader, Treat, torch_loader


def _read(treat: Treat, reader: Any) -> Any:
    return treat(reader.read()), int(PurePosixPath(reader.key).stem)


def open_loader(job: Job) -> Loader:
    """Puts the dataset in torch's DataLoader."""
    os.environ["AWS_ACCESS_KEY_ID"] = job.access_key_id  # it takes keys from the environment only
    os.environ["AWS_SECRET_ACCESS_KEY"] = job.secret_access_key
    options: dict[str, Any] = {
        "region": job.region,
        "endpoint": job.endpoint_url,
        "transform": partial(_read, Treat(job)),
        "s3client_config": S3ClientConfig(force_path_style=True),
        "reader_constructor": S3ReaderConstructor.sequential(),
    }
    if job.options.get("iterable"):
        return torch_loader(S3IterableDataset.from_prefix(f"{job.url}/", enable_sharding=True, **options), job)
    return torch_loader(S3MapDataset.from_prefix(f"{job.url}/", **options), job)
