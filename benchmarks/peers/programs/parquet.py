"""Parquet files for those who stream them: uncompressed, because images do not shrink."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers.job import Job, written

_SCHEMA = pa.schema({"image": pa.binary(), "number": pa.int64()})


def write_parquet(job: Job, filesystem: Any, **options: Any) -> None:
    """Writes files of 16 MiB below the job's prefix."""
    rows: list[tuple[int, bytes]] = []
    num_files = num_bytes = 0

    def flush() -> None:
        columns = {"image": [data for _, data in rows], "number": [number for number, _ in rows]}
        pq.write_table(
            pa.table(columns, schema=_SCHEMA), f"{job.bucket}/{job.prefix}/{num_files:06d}.parquet",
            filesystem=filesystem, compression="none", use_dictionary=False, write_statistics=False, **options,
        )  # fmt: skip
        rows.clear()

    for number, data in written(job):
        rows.append((number, data))
        num_bytes += len(data)
        if num_bytes >= 16 << 20:
            flush()
            num_files, num_bytes = num_files + 1, 0
    if rows:
        flush()
