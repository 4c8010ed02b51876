"""Uses the loader as the source of a torchdata pipeline, whose state then contains the loader's position.

    python docs/examples/torchdata_nodes.py s3://bucket/points

The dataset has the columns ``x`` (float32[8]) and ``label`` (int64, 0 … 2).
"""

from __future__ import annotations

import sys
from typing import Any

import torchdata.nodes as nodes

from concurrent_loader import ConcurrentDataLoader, ShardDataset


def normalised(batch: Any) -> Any:
    """Normalizes a batch, as a step of an existing pipeline might."""
    batch["x"] = (batch["x"] - batch["x"].mean()) / batch["x"].std()
    return batch


def pipeline(dataset: ShardDataset, batch_size: int = 64) -> nodes.Loader[Any]:
    """Returns a torchdata pipeline that can be saved at any batch, and restored without a replay."""
    source = nodes.IterableWrapper(ConcurrentDataLoader(dataset, batch_size, shuffle=True, seed=0))
    return nodes.Loader(nodes.Mapper(source, normalised))


if __name__ == "__main__":
    with ShardDataset(sys.argv[1]) as dataset:
        batches = pipeline(dataset)
        for _ in range(2):
            num_samples = sum(len(batch["x"]) for batch in batches)
            print(num_samples, batches.state_dict())
