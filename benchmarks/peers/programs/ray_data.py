"""Ray Data: Parquet files read by tasks in worker processes, passed on in shared memory, shuffled in a local buffer.

Settings from https://docs.ray.io/en/latest/data/performance-tips.html and
https://docs.ray.io/en/latest/data/shuffling-data.html: files shuffled, a local buffer of rows shuffled, a few batches
fetched ahead; blocks of 16 MB in place of 128 MB, so that a small dataset has enough of them to be streamed.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_AUTH_MODE": "disabled",
}

import pyarrow.fs
import ray
import torch
from torch import Tensor

from benchmarks.peers.job import Job, Loader, Treat
from benchmarks.peers.programs.parquet import write_parquet


def write(job: Job) -> None:
    """Writes Parquet files."""
    write_parquet(job, _filesystem(job))


def _decode(treat: Treat, columns: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    images = [image for image in map(treat, columns["image"]) if isinstance(image, Tensor)]
    return {"image": torch.stack(images).numpy(), "number": columns["number"]}


def prepare(job: Job) -> None:
    """Starts a cluster of this machine: a training with Ray joins one that runs, so its start is not timed."""
    ray.init(
        num_cpus=job.num_workers, include_dashboard=False, configure_logging=True, logging_level=logging.WARNING,
        log_to_driver=False, object_store_memory=2 << 30, _temp_dir=_folder(),
    )  # fmt: skip


def open_loader(job: Job) -> Loader:
    """Makes a dataset in the cluster."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = 16 << 20
    shuffle = ray.data.FileShuffleConfig(seed=job.seed)
    dataset = ray.data.read_parquet(f"{job.bucket}/{job.prefix}/", filesystem=_filesystem(job), shuffle=shuffle)
    if job.decoded:
        dataset = dataset.map_batches(partial(_decode, Treat(job)), batch_size=64)
    return _Loader(dataset, job)


class _Loader(Loader):
    def __init__(self, dataset: Any, job: Job) -> None:
        super().__init__(dataset)
        self._job = job

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader.iter_batches(
            batch_size=self._job.batch_size, prefetch_batches=4, batch_format="numpy",
            local_shuffle_buffer_size=1000, local_shuffle_seed=self._job.seed,
        ):  # fmt: skip
            images = batch["image"]
            yield torch.from_numpy(images) if self._job.decoded else images.tolist(), batch["number"].tolist()

    def close(self) -> None:
        """Ends the cluster's processes, and removes the folder with its logs and sockets."""
        super().close()
        ray.shutdown()
        shutil.rmtree(_folder(), ignore_errors=True)  # its last process may be removing a socket


def _folder() -> str:
    return str(Path(tempfile.gettempdir()) / f"ray-{os.getpid()}")


def _filesystem(job: Job) -> pyarrow.fs.S3FileSystem:
    keys = {"access_key": job.access_key_id, "secret_key": job.secret_access_key}
    return pyarrow.fs.S3FileSystem(**keys, region=job.region, endpoint_override=job.endpoint_url)
