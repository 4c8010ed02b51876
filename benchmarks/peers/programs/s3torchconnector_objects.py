"""s3torchconnector's S3MapDataset: one object per image, by AWS's own native client, in torch's DataLoader.

https://github.com/awslabs/s3-connector-for-pytorch: `from_prefix`, a transform that reads, path style for an endpoint
that is not AWS's.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

from s3torchconnector import S3ClientConfig, S3IterableDataset, S3MapDataset, S3ReaderConstructor

from benchmarks.peers.images import Treat
from benchmarks.peers.messages import Job
from benchmarks.peers.torch_loader import TorchLoader


class _Read:
    def __init__(self, job: Job) -> None:
        self._treat = Treat(job)

    def __call__(self, reader: Any) -> Any:
        return self._treat(reader.read()), int(PurePosixPath(reader.key).stem)


def open_loader(job: Job) -> TorchLoader:
    """The dataset in torch's DataLoader; ``iterable`` takes S3IterableDataset, whose order is the bucket's."""
    os.environ["AWS_ACCESS_KEY_ID"] = job.access_key_id  # it takes keys from the environment only
    os.environ["AWS_SECRET_ACCESS_KEY"] = job.secret_access_key
    options: dict[str, Any] = {
        "region": job.region,
        "endpoint": job.endpoint_url,
        "transform": _Read(job),
        "s3client_config": S3ClientConfig(force_path_style=True),
        "reader_constructor": S3ReaderConstructor.sequential(),
    }
    uri = f"s3://{job.bucket}/{job.prefix}/"
    if job.options.get("iterable"):
        return TorchLoader(S3IterableDataset.from_prefix(uri, enable_sharding=True, **options), job)
    return TorchLoader(S3MapDataset.from_prefix(uri, **options), job)
