"""torch's DataLoader over one image per item, as tutorials show it; ``client`` is what reads an item.

``files``: the local drive, which a bucket is measured against; ``boto3``: one object, fetched when its turn comes;
``s3fs``: the same through s3fs, as fsspec's users do.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from torch.utils.data import Dataset

from benchmarks.peers.job import Job, Loader, Treat, paths, torch_loader


def connect(job: Job, **config: Any) -> Any:
    """Makes a client that leads to a job's bucket."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=job.endpoint_url,
        region_name=job.region,
        aws_access_key_id=job.access_key_id,
        aws_secret_access_key=job.secret_access_key,
        config=Config(s3={"addressing_style": "path"}, retries={"mode": "standard"}, **config),
    )


def listed_keys(client: Any, job: Job) -> list[str]:
    """Returns the keys below a job's prefix, sorted."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=job.bucket, Prefix=f"{job.prefix}/")
    return sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))


class _Files:
    def __init__(self, job: Job) -> None:
        self.list = lambda: [str(path) for path in paths(job.photos)]

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - Path.read_bytes costs 5 µs more
            return file.read()


class _Boto3:
    def __init__(self, job: Job) -> None:
        client = connect(job)
        self.list = partial(listed_keys, client, job)
        self.read = lambda key: client.get_object(Bucket=job.bucket, Key=key)["Body"].read()


class _S3fs:
    def __init__(self, job: Job) -> None:
        import s3fs

        filesystem = s3fs.S3FileSystem(**job.s3fs_options, skip_instance_cache=True)
        self.list = partial(filesystem.ls, f"{job.bucket}/{job.prefix}")
        self.read = filesystem.cat_file


_CLIENTS: dict[str, Any] = {"files": _Files, "boto3": _Boto3, "s3fs": _S3fs}


class _Items(Dataset[Any]):
    """Lists all images; makes a client in each process, because clients do not survive a fork."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._treat = Treat(job)
        self._client: Any = None
        self._pid = 0
        self._found = sorted(self._connected().list())  # in the order of the images' numbers

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, number: int) -> Any:
        return self._treat(self._connected().read(self._found[number])), number

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_pid": 0}

    def _connected(self) -> Any:
        if self._pid != os.getpid():
            self._client, self._pid = _CLIENTS[self._job.options["client"]](self._job), os.getpid()
        return self._client


def open_loader(job: Job) -> Loader:
    """Puts the dataset in torch's DataLoader."""
    return torch_loader(_Items(job), job)
