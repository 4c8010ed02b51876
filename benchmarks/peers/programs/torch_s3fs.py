"""torch's DataLoader over one object per image, read through s3fs, as fsspec's users do."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

import s3fs
from torch.utils.data import Dataset

from benchmarks.peers.images import Treat
from benchmarks.peers.messages import Job
from benchmarks.peers.torch_loader import TorchLoader


class _Objects(Dataset[Any]):
    def __init__(self, job: Job) -> None:
        self._job = job
        self._treat = Treat(job)
        self._files: Any = None
        self._files_pid = 0
        self._keys = sorted(self._connect().ls(f"{job.bucket}/{job.prefix}"))

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, number: int) -> Any:
        key = self._keys[number]
        return self._treat(self._connect().cat_file(key)), int(PurePosixPath(key).stem)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None, "_files_pid": 0}

    def _connect(self) -> Any:
        """A file system of this process: they do not bear forking."""
        if self._files_pid != os.getpid():
            self._files = s3fs.S3FileSystem(
                key=self._job.access_key_id,
                secret=self._job.secret_access_key,
                endpoint_url=self._job.endpoint_url,
                client_kwargs={"region_name": self._job.region},
                skip_instance_cache=True,
            )
            self._files_pid = os.getpid()
        return self._files


def open_loader(job: Job) -> TorchLoader:
    """The dataset in torch's DataLoader."""
    return TorchLoader(_Objects(job), job)
