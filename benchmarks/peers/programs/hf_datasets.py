"""Hugging Face datasets: Parquet files streamed through s3fs, shuffled in a buffer, in torch's DataLoader.

Settings from https://huggingface.co/docs/datasets/stream (shuffle's buffer of 1,000 samples filled from 10 files at a
time, whose next rows threads fetch ahead) and from the documentation of its Parquet reader (``CacheOptions`` with
``prefetch_limit``). Row groups of 100 rows are of 5 MB here. It resumes where torchdata's loader keeps the state of the
workers; what the shuffle's buffer held is dropped, as it warns when it loads such a state.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.dataset as pads
from torch.utils.data import DataLoader

from benchmarks.peers.job import Job, Loader, Treat, collate
from benchmarks.peers.programs.parquet import write_parquet


def write(job: Job) -> None:
    """Writes Parquet files, in groups of 100 rows."""
    filesystem = fsspec.filesystem("s3", **_storage_options(job))
    write_parquet(job, filesystem, row_group_size=100)


class _Item:
    def __init__(self, job: Job) -> None:
        self._treat = Treat(job)

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        return collate([(self._treat(row["image"]), row["number"]) for row in rows])


def open_loader(job: Job) -> Loader:
    """Makes dataset and loader."""
    cache_options = pa.CacheOptions(prefetch_limit=1, range_size_limit=32 << 20)
    dataset = datasets.load_dataset(
        "parquet", data_files=f"{job.url}/*.parquet", split="train", streaming=True,
        storage_options=_storage_options(job),
        fragment_scan_options=pads.ParquetFragmentScanOptions(cache_options=cache_options),
    ).shuffle(seed=job.seed, buffer_size=1000, max_buffer_input_shards=10)  # fmt: skip
    # Only torchdata's loader can save where its workers are, and to do so for every batch costs it time.
    loader_class: Any = DataLoader
    if job.state is not None or job.num_batches is not None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader_class = StatefulDataLoader
    loader = loader_class(
        dataset, batch_size=job.batch_size, num_workers=job.num_workers, collate_fn=_Item(job),
        prefetch_factor=4 if job.num_workers else None,
    )  # fmt: skip
    if job.state is not None:
        loader.load_state_dict(pickle.loads(base64.b64decode(job.state)))  # noqa: S301 - our own, of before
    return _Loader(loader)


class _Loader(Loader):
    def state(self) -> str:
        """Returns the loader's state, without what the dataset's buffer held: those images are lost."""
        return base64.b64encode(pickle.dumps(self._loader.state_dict())).decode()


def _storage_options(job: Job) -> dict[str, Any]:
    return {
        "key": job.access_key_id,
        "secret": job.secret_access_key,
        "client_kwargs": {"endpoint_url": job.endpoint_url, "region_name": job.region},
    }
