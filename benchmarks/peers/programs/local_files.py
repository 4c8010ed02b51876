"""torch's DataLoader over the files on the local drive: what a bucket is measured against."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from benchmarks.peers.images import Treat, paths
from benchmarks.peers.messages import Job
from benchmarks.peers.torch_loader import TorchLoader


class _Files(Dataset[Any]):
    def __init__(self, job: Job) -> None:
        self._paths = [str(path) for path in paths(job.photos)]
        self._treat = Treat(job)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> Any:
        with open(self._paths[number], "rb", buffering=0) as file:  # noqa: PTH123 - Path.read_bytes costs 5 µs more
            return self._treat(file.read()), number


def open_loader(job: Job) -> TorchLoader:
    """The dataset in torch's DataLoader."""
    return TorchLoader(_Files(job), job)
