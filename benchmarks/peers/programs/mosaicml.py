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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from benchmarks.peers.images import Treat, collate, written
from benchmarks.peers.messages import Job


def write(job: Job) -> None:
    """Shards of ``shard_bytes``; neither compressed nor hashed, for images do not shrink and hashing costs time."""
    _connect(job)
    with MDSWriter(
        out=_url(job),
        columns={"image": "bytes", "number": "int64"},
        size_limit=job.options.get("shard_bytes", 1 << 26),
    ) as writer:
        for number, data in written(job):
            writer.write({"image": data, "number": number})


def open_loader(job: Job) -> _Loader:
    """Dataset and loader."""
    _connect(job)
    return _Loader(job)


class _Images(StreamingDataset):  # type: ignore[misc]
    def __init__(self, treat: Treat, **settings: Any) -> None:
        super().__init__(**settings)
        self._treat = treat

    def __getitem__(self, place: int) -> Any:
        sample = super().__getitem__(place)
        return self._treat(sample["image"]), sample["number"]


class _Loader:
    def __init__(self, job: Job) -> None:
        if job.cache_dir is None:
            raise ValueError("MosaicML Streaming needs a folder to download to")
        self._locks = tempfile.mkdtemp(prefix="mds-")  # its lock files stay; a later run would take them for another's
        tempfile.tempdir = self._locks
        self._loader: Any = StreamingDataLoader(
            _Images(
                Treat(job),
                remote=_url(job),
                local=str(Path(job.cache_dir) / "mds"),
                batch_size=job.batch_size,
                shuffle=True,
                shuffle_algo=job.options.get("shuffle_algo", "py1e"),
                shuffle_block_size=job.options.get("shuffle_block_size"),
                shuffle_seed=job.seed,
                predownload=job.options.get("predownload"),
                num_canonical_nodes=job.options.get("num_canonical_nodes"),
            ),
            batch_size=job.batch_size,
            num_workers=job.num_workers,
            prefetch_factor=job.options.get("prefetch_factor", 4) if job.num_workers else None,
            collate_fn=collate,
        )
        if job.state is not None:
            self._loader.load_state_dict(job.state)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def state(self) -> Any:
        return self._loader.state_dict()

    def close(self) -> None:
        """Ends workers, and removes shared memory and lock files, which it leaves to the interpreter's end or ever."""
        del self._loader
        gc.collect()
        clean_stale_shared_memory()
        tempfile.tempdir = None
        shutil.rmtree(self._locks, ignore_errors=True)  # a worker that ends may be removing its own part of it


def _url(job: Job) -> str:
    return f"s3://{job.bucket}/{job.prefix}"


def _connect(job: Job) -> None:
    """It takes endpoint and credentials from the environment only."""
    os.environ |= {
        "S3_ENDPOINT_URL": job.endpoint_url,
        "AWS_ACCESS_KEY_ID": job.access_key_id,
        "AWS_SECRET_ACCESS_KEY": job.secret_access_key,
        "AWS_DEFAULT_REGION": job.region,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
