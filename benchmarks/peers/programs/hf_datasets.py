"""Hugging Face datasets: Parquet files streamed through s3fs, shuffled in a buffer, in torch's DataLoader.

Settings from https://huggingface.co/docs/datasets/stream (shuffle's buffer of 1,000 samples filled from 10 files at a
time, whose next rows threads fetch ahead) and from the documentation of its Parquet reader (``CacheOptions`` with
``prefetch_limit``). Row groups of 100 rows are of 5 MB here. It resumes where torchdata's loader keeps the state of the
workers; what the shuffle's buffer held is dropped, as it warns when it loads such a state.
"""

from __future__ import annotations

import base64
import pickle
from functools import partial
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.dataset as pads
from torch.utils.data import DataLoader

from benchmarks.peers.job import Job, Loader, Treat, batching, collate, treat_fields
from benchmarks.peers.programs.parquet import write_parquet


def write(job: Job) -> None:
    """Writes Parquet files, in groups of 100 rows."""
    write_parquet(job, fsspec.filesystem("s3", **job.s3fs_options), row_group_size=100)


def _collate(treat: Treat, rows: list[dict[str, Any]]) -> Any:
    return collate([treat_fields(treat, "image", "number", row) for row in rows])


def open_loader(job: Job) -> Loader:
    """Makes dataset and loader."""
    cache_options = pa.CacheOptions(prefetch_limit=1, range_size_limit=32 << 20)
    dataset = datasets.load_dataset(
        "parquet", data_files=f"{job.url}/*.parquet", split="train", streaming=True, storage_options=job.s3fs_options,
        fragment_scan_options=pads.ParquetFragmentScanOptions(cache_options=cache_options),
    ).shuffle(seed=job.seed, buffer_size=1000, max_buffer_input_shards=10)  # fmt: skip
    # Only torchdata's loader can save where its workers are, and to do so for every batch costs it time.
    loader_class: Any = DataLoader
    if job.state is not None or job.num_batches is not None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader_class = StatefulDataLoader
    loader = loader_class(dataset, **batching(job, partial(_collate, Treat(job))))
    if job.state is not None:
        loader.load_state_dict(pickle.loads(base64.b64decode(job.state)))  # noqa: S301 - our own, of before
    return _Loader(loader)


class _Loader(Loader):
    def state(self) -> str:
        """Returns the loader's state, without what the dataset's buffer held: those images are lost."""
        return base64.b64encode(pickle.dumps(self._loader.state_dict())).decode()
