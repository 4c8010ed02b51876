"""MosaicML Streaming: MDS shards that the workers download whole to the local drive and then read from there.

Settings from https://docs.mosaicml.com/projects/streaming/en/latest/distributed_training/performance_tuning.html and
https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/shuffling.html: shards of 64 MB, the
recommended shuffle py1e, ``predownload`` of 8 batches, which is its default where the batch size is told. Its block of
shuffling, 262,144 samples at least by default, is larger than the benchmark's dataset: the first batch waits for all
shards then. ``shuffle_block_size`` is the knob, and py1s the algorithm that its documentation offers instead.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from benchmarks.peers.job import Job, Loader, StatefulLoader, Treat, batching, written


def write(job: Job) -> None:
    """Writes shards of ``shard_bytes``; neither compressed nor hashed: images do not shrink and hashing costs time."""
    _connect(job)
    columns = {"image": "bytes", "number": "int64"}
    with MDSWriter(out=job.url, columns=columns, size_limit=job.options.get("shard_bytes", 1 << 26)) as writer:
        for number, data in written(job):
            writer.write({"image": data, "number": number})


class _Images(StreamingDataset):  # type: ignore[misc]
    def __init__(self, treat: Treat, **settings: Any) -> None:
        super().__init__(**settings)
        self._treat = treat

    def __getitem__(self, place: int) -> Any:
        sample = super().__getitem__(place)
        return self._treat(sample["image"]), sample["number"]


class _Loader(StatefulLoader):
    def __init__(self, loader: Any, job: Job, locks: str) -> None:
        super().__init__(loader, job)
        self._locks = locks

    def close(self) -> None:
        """Ends workers, and removes shared memory and lock files, which would stay."""
        super().close()
        gc.collect()
        clean_stale_shared_memory()
        tempfile.tempdir = None
        shutil.rmtree(self._locks, ignore_errors=True)  # a worker that ends may be removing its own part of it


def open_loader(job: Job) -> Loader:
    """Makes dataset and loader."""
    if job.cache_dir is None:
        raise ValueError("MosaicML Streaming needs a folder to download to")
    _connect(job)
    locks = tempfile.mkdtemp(prefix="mds-")  # its lock files stay; a later run would take them for another's
    tempfile.tempdir = locks
    dataset = _Images(
        Treat(job), remote=job.url, local=str(Path(job.cache_dir) / "mds"), batch_size=job.batch_size, shuffle=True,
        shuffle_algo="py1e", shuffle_block_size=job.options.get("shuffle_block_size"), shuffle_seed=job.seed,
    )  # fmt: skip
    return _Loader(StreamingDataLoader(dataset, **batching(job)), job, locks)


def _connect(job: Job) -> None:
    """Sets endpoint and credentials, which it takes from the environment only."""
    os.environ |= {
        "S3_ENDPOINT_URL": job.endpoint_url,
        "AWS_ACCESS_KEY_ID": job.access_key_id,
        "AWS_SECRET_ACCESS_KEY": job.secret_access_key,
        "AWS_DEFAULT_REGION": job.region,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
