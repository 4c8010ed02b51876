"""Counts the copies in memory of a sample that is larger than everything else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage import ShardWriter

NUM_BYTES = 48 << 20  # more than what is kept of small things


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("bytes", bytes(NUM_BYTES)),
        ("bytes", bytearray(NUM_BYTES)),
        ("uint8[...]", np.zeros(NUM_BYTES, np.uint8)),
        (f"float32[{NUM_BYTES // 4}]", np.zeros(NUM_BYTES // 4, np.float32)),
    ],
    ids=["bytes", "bytearray", "ragged", "fixed shape"],
)
def test_copies_of_a_large_sample(type_: str, value: Any, tmp_path: Path) -> None:
    with peak_bytes() as peak, ShardWriter(str(tmp_path), columns={"data": type_}) as writer:
        writer.write({"data": value})
    assert peak[0] < 1.4 * NUM_BYTES  # beside the caller's
    with ShardDataset(str(tmp_path)) as dataset:
        peaks = []
        for _ in range(3):  # a thread that is not scheduled in time may hold what it has handed over a moment longer
            with peak_bytes() as peak:
                assert len(dataset[0]["data"]) == len(value)
            peaks += peak
        assert min(peaks) < 2.2 * NUM_BYTES
        with peak_bytes() as peak:
            (batch,) = ConcurrentDataLoader(dataset, batch_size=1)
        assert len(batch["data"][0]) == len(value)
        assert peak[0] < 2.2 * NUM_BYTES
