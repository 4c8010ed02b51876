"""Hugging Face datasets: Parquet files streamed through s3fs, shuffled in a buffer, in torch's DataLoader.

Settings from https://huggingface.co/docs/datasets/stream (shuffle's buffer of 1,000 samples filled from 10 files at a
time, whose next rows threads fetch ahead) and from the documentation of its Parquet reader (``CacheOptions`` with
``prefetch_limit``). Row groups of 100 rows are of 5 MB here. It resumes where torchdata's loader keeps the state of the
workers; what the shuffle's buffer held is dropped, as it warns when it loads such a state.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from torch.utils.data import DataLoader

from benchmarks.peers.images import Treat, collate, written
from benchmarks.peers.messages import Job

_SCHEMA = pa.schema({"image": pa.binary(), "number": pa.int64()})


def write(job: Job) -> None:
    """Parquet files of ``file_bytes``, in groups of ``row_group`` rows; uncompressed, for images do not shrink."""
    filesystem = fsspec.filesystem("s3", **_storage_options(job))
    rows: list[tuple[int, bytes]] = []
    num_bytes = num_files = 0

    def flush() -> None:
        nonlocal num_bytes, num_files
        table = pa.table(
            {"image": [data for _, data in rows], "number": [number for number, _ in rows]}, schema=_SCHEMA
        )
        path = f"{job.bucket}/{job.prefix}/{num_files:06d}.parquet"
        pq.write_table(
            table,
            path,
            filesystem=filesystem,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
            row_group_size=job.options.get("row_group", 100),
        )
        rows.clear()
        num_bytes = 0
        num_files += 1

    for number, data in written(job):
        rows.append((number, data))
        num_bytes += len(data)
        if num_bytes >= job.options.get("file_bytes", 16 << 20):
            flush()
    if rows:
        flush()


class _Item:
    def __init__(self, job: Job) -> None:
        self._treat = Treat(job)

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        return collate([(self._treat(row["image"]), row["number"]) for row in rows])


def open_loader(job: Job) -> _Loader:
    """Dataset and loader."""
    return _Loader(job)


class _Loader:
    def __init__(self, job: Job) -> None:
        scan = None
        if job.options.get("prefetch", True):
            scan = pads.ParquetFragmentScanOptions(
                cache_options=pa.CacheOptions(
                    prefetch_limit=1, range_size_limit=job.options.get("range_bytes", 32 << 20)
                )
            )
        dataset = datasets.load_dataset(
            "parquet",
            data_files=f"s3://{job.bucket}/{job.prefix}/*.parquet",
            split="train",
            streaming=True,
            storage_options=_storage_options(job),
            **({} if scan is None else {"fragment_scan_options": scan}),
        ).shuffle(
            seed=job.seed,
            buffer_size=job.options.get("buffer_size", 1000),
            max_buffer_input_shards=job.options.get("input_shards", 10),
        )
        # Only torchdata's loader can save where its workers are, and to do so for every batch costs it time.
        loader_class: Any = DataLoader
        if job.state is not None or job.num_batches is not None:
            from torchdata.stateful_dataloader import StatefulDataLoader

            loader_class = StatefulDataLoader
        self._loader: Any = loader_class(
            dataset,
            batch_size=job.batch_size,
            num_workers=job.num_workers,
            prefetch_factor=4 if job.num_workers else None,
            collate_fn=_Item(job),
        )
        if job.state is not None:
            self._loader.load_state_dict(pickle.loads(base64.b64decode(job.state)))  # noqa: S301 - our own, of before

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def state(self) -> str:
        """What the dataset's buffer held is not in it: those images are lost."""
        return base64.b64encode(pickle.dumps(self._loader.state_dict())).decode()

    def close(self) -> None:
        """Workers end with the iterator."""
        del self._loader


def _storage_options(job: Job) -> dict[str, Any]:
    return {
        "key": job.access_key_id,
        "secret": job.secret_access_key,
        "client_kwargs": {"endpoint_url": job.endpoint_url, "region_name": job.region},
    }
