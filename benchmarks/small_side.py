"""One side of `benchmarks.small`, a program of its own: writes rows in its format, and times epochs over them.

It needs the side's library alone, so that it runs in any peer's environment.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from operator import getitem
from pathlib import Path
from time import process_time
from typing import Any

Epoch = Callable[[int], Iterator[int]]  # seed of the order (0: in order) → number of rows of each batch


def texts(num_rows: int) -> list[str]:
    """Returns captions of 118 characters on average, the same in every process."""
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(2000)]
    return [" ".join(rng.choices(words, k=18)) for _ in range(num_rows)]


# Each peer writes texts into a folder and returns what yields the batches of an epoch, lists of str.


def _datasets(folder: Path, rows: list[str], batch_size: int) -> Epoch:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": rows}).save_to_disk(str(folder))
    dataset = datasets.load_from_disk(str(folder))

    def epoch(seed: int) -> Iterator[int]:
        for batch in (dataset.shuffle(seed=seed) if seed else dataset).iter(batch_size):
            yield len(batch["text"])

    return epoch


def _parquet(folder: Path, rows: list[str], batch_size: int) -> Epoch:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = folder / "text.parquet"
    pq.write_table(pa.table({"text": rows}), file, row_group_size=16_384)

    def epoch(seed: int) -> Iterator[int]:
        reader, rng = pq.ParquetFile(file), np.random.default_rng(seed)
        groups = rng.permutation(reader.num_row_groups) if seed else np.arange(reader.num_row_groups)
        for group in groups.tolist():  # row groups in a new order, and the rows within each: no row is read twice
            table = reader.read_row_group(group)
            table = table.take(rng.permutation(len(table))) if seed else table
            for batch in table.to_batches(batch_size):
                yield len(batch.column("text").to_pylist())

    return epoch


def _litdata(folder: Path, rows: list[str], batch_size: int) -> Epoch:
    import litdata

    text, numbers = partial(getitem, rows), list(range(len(rows)))
    litdata.optimize(text, numbers, str(folder), chunk_bytes="8MB", num_workers=1, verbose=False)

    def epoch(seed: int) -> Iterator[int]:
        dataset = litdata.StreamingDataset(str(folder), shuffle=seed > 0, seed=seed)
        for batch in litdata.StreamingDataLoader(dataset, batch_size=batch_size, collate_fn=list):
            yield len(batch)

    return epoch


def _mds(folder: Path, rows: list[str], batch_size: int) -> Epoch:
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    with MDSWriter(out=str(folder), columns={"text": "str"}, size_limit=1 << 23) as writer:
        for row in rows:
            writer.write({"text": row})

    def epoch(seed: int) -> Iterator[int]:
        dataset = StreamingDataset(local=str(folder), batch_size=batch_size, shuffle=seed > 0, shuffle_seed=seed)
        for batch in DataLoader(dataset, batch_size, collate_fn=list):
            yield len(batch)

    return epoch


def _array_record(folder: Path, rows: list[str], batch_size: int) -> Epoch:
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    file = str(folder / "text.arrayrecord")
    writer = ArrayRecordWriter(file, "group_size:1")
    for row in rows:
        writer.write(row.encode())
    writer.close()

    def epoch(seed: int) -> Iterator[int]:
        reader, order = ArrayRecordReader(file), list(range(len(rows)))
        if seed:
            random.Random(seed).shuffle(order)
        for start in range(0, len(order), batch_size):
            yield len([data.decode() for data in reader.read(order[start : start + batch_size])])
        reader.close()

    return epoch


PEERS: dict[str, Callable[[Path, list[str], int], Epoch]] = {
    "datasets": _datasets, "parquet": _parquet, "litdata": _litdata, "mds": _mds, "array_record": _array_record,
}  # fmt: skip

# -- ours --------------------------------------------------------------------------------------------------------------


def columns(kind: str, num_rows: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Returns the column types of a kind of rows, and the rows by column."""
    import numpy as np

    rng = np.random.default_rng(0)
    if kind == "text":
        return {"text": "str"}, {"text": texts(num_rows)}
    if kind == "tokens":
        lengths = rng.integers(20, 201, num_rows)  # 110 on average
        flat = rng.integers(0, 50_000, int(lengths.sum()), np.int32)
        return {"tokens": "int32[...]"}, {"tokens": np.split(flat, np.cumsum(lengths)[:-1])}
    if kind == "bytes1k":
        whole = rng.bytes(num_rows << 10)
        return {"data": "bytes"}, {"data": [whole[at << 10 : (at + 1) << 10] for at in range(num_rows)]}
    numbers = np.arange(num_rows)
    values = {"a": numbers, "b": numbers.astype(np.float32), "c": (numbers % 7).astype(np.int32)}
    return {"a": "int64", "b": "float32", "c": "int32"}, values


def _ours(folder: Path, types: dict[str, str], rows: dict[str, Any], shard_size: str, batch_size: int) -> Epoch:
    from concurrent_loader import ConcurrentDataLoader, ShardDataset
    from concurrent_loader.storage import ShardWriter

    with ShardWriter(folder, columns=types, shard_size=shard_size) as writer:
        writer.write_batch(rows)
    packed: dict[str, Any] = {"ragged": {"tokens": "packed"}} if "tokens" in types else {}

    def epoch(seed: int) -> Iterator[int]:
        with ShardDataset(folder) as dataset:
            for batch in ConcurrentDataLoader(dataset, batch_size, shuffle=seed > 0, seed=seed, **packed):
                yield len(batch.sample_ids)

    return epoch


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Returns rows per second of processor time: of writing, of epochs in order and of shuffled ones, each the best."""
    folder, num_rows = Path(job["folder"]), job["num_rows"]
    shutil.rmtree(folder, ignore_errors=True)
    types, rows = columns(job["kind"], num_rows) if job["side"] == "ours" else ({}, {"text": texts(num_rows)})

    def make(name: str, count: int) -> Epoch:
        place, some = folder / name, {column: values[:count] for column, values in rows.items()}
        place.mkdir(parents=True)
        if job["side"] == "ours":
            return _ours(place, types, some, job["shard_size"], job["batch_size"])
        return PEERS[job["side"]](place, some["text"], job["batch_size"])

    make("first", 100)  # imports
    began = process_time()
    epoch = make("rows", num_rows)
    found = {"write": num_rows / (process_time() - began)}
    for name, seeds in (("in_order", [0] * job["num_epochs"]), ("shuffled", range(1, job["num_epochs"] + 1))):
        best_s = float("inf")
        for seed in seeds:
            began = process_time()
            if sum(epoch(seed)) != num_rows:
                raise AssertionError(f"{job['side']} gave another number of rows")
            best_s = min(best_s, process_time() - began)
        found[name] = num_rows / best_s
    return found


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin))))
