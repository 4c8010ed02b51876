"""torch's DataLoader over one image per item, as tutorials show it; ``client`` is what reads an item.

``files``: the local drive, which a bucket is measured against; ``boto3``: one object, fetched when its turn comes;
``s3fs``: the same through s3fs, as fsspec's users do.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

from torch.utils.data import Dataset

from benchmarks.peers.job import Job, Loader, Treat, paths, torch_loader
from benchmarks.peers.programs.boto3_client import connect, listed_keys


class _Items(Dataset[Any]):
    """Lists all keys; makes a client in each process, because clients do not survive a fork."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._treat = Treat(job)
        self._client: Any = None
        self._client_pid = 0
        self._keys = sorted(self.keys())

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, number: int) -> Any:
        key = self._keys[number]
        return self._treat(self.read(key)), int(PurePosixPath(key).stem)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_client_pid": 0}

    def connected(self) -> Any:
        """Returns the client of this process."""
        if self._client_pid != os.getpid():
            self._client, self._client_pid = self.connect(), os.getpid()
        return self._client

    def connect(self) -> Any: ...

    def keys(self) -> list[str]:
        raise NotImplementedError

    def read(self, key: str) -> bytes:
        raise NotImplementedError


class _Files(_Items):
    def keys(self) -> list[str]:
        return [str(path) for path in paths(self._job.photos)]

    def __getitem__(self, number: int) -> Any:
        with open(self._keys[number], "rb", buffering=0) as file:  # noqa: PTH123 - Path.read_bytes costs 5 µs more
            return self._treat(file.read()), number


class _Boto3(_Items):
    def connect(self) -> Any:
        return connect(self._job)

    def keys(self) -> list[str]:
        return listed_keys(self.connected(), self._job)

    def read(self, key: str) -> bytes:
        data: bytes = self.connected().get_object(Bucket=self._job.bucket, Key=key)["Body"].read()
        return data


class _S3fs(_Items):
    def connect(self) -> Any:
        import s3fs

        return s3fs.S3FileSystem(**self._job.s3fs_options, skip_instance_cache=True)

    def keys(self) -> list[str]:
        found: list[str] = self.connected().ls(f"{self._job.bucket}/{self._job.prefix}")
        return found

    def read(self, key: str) -> bytes:
        data: bytes = self.connected().cat_file(key)
        return data


_CLIENTS = {"files": _Files, "boto3": _Boto3, "s3fs": _S3fs}


def open_loader(job: Job) -> Loader:
    """Puts the dataset in torch's DataLoader."""
    return torch_loader(_CLIENTS[job.options["client"]](job), job)
