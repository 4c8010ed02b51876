"""torch's DataLoader over one object per image, fetched by boto3 when its turn comes: what tutorials show."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

import boto3
from botocore.config import Config
from torch.utils.data import Dataset

from benchmarks.peers.images import Treat
from benchmarks.peers.messages import Job
from benchmarks.peers.torch_loader import TorchLoader


class _Objects(Dataset[Any]):
    def __init__(self, job: Job) -> None:
        self._job = job
        self._treat = Treat(job)
        self._client: Any = None
        self._client_pid = 0
        pages = self._connect().get_paginator("list_objects_v2").paginate(Bucket=job.bucket, Prefix=f"{job.prefix}/")
        self._keys = sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, number: int) -> Any:
        key = self._keys[number]
        data = self._connect().get_object(Bucket=self._job.bucket, Key=key)["Body"].read()
        return self._treat(data), int(PurePosixPath(key).stem)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_client_pid": 0}

    def _connect(self) -> Any:
        """A client of this process: they do not bear forking."""
        if self._client_pid != os.getpid():
            self._client = boto3.client(
                "s3",
                endpoint_url=self._job.endpoint_url,
                region_name=self._job.region,
                aws_access_key_id=self._job.access_key_id,
                aws_secret_access_key=self._job.secret_access_key,
                config=Config(s3={"addressing_style": "path"}, retries={"mode": "standard"}),
            )
            self._client_pid = os.getpid()
        return self._client


def open_loader(job: Job) -> TorchLoader:
    """The dataset in torch's DataLoader."""
    return TorchLoader(_Objects(job), job)
