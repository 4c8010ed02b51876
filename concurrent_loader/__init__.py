"""Train from a bucket as fast as from a local drive: batches for torch from shards in object storage."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent_loader.augment import CenterCrop, RandomResizedCrop
    from concurrent_loader.batch import Batch, collate
    from concurrent_loader.dataset import ShardDataset
    from concurrent_loader.drop_in import DropInDataLoader
    from concurrent_loader.errors import (
        CollateError,
        DecodeError,
        LoaderError,
        LoaderStateError,
        LoaderTimeout,
        TooManyDecodeErrors,
        TransformError,
        WorkerDied,
    )
    from concurrent_loader.loader import ConcurrentDataLoader
    from concurrent_loader.mixture import Mixture
    from concurrent_loader.object_dataset import ObjectDataset
    from concurrent_loader.stats import LoaderStats
    from concurrent_loader.views import DatasetView

__all__ = [
    "Batch",
    "CenterCrop",
    "CollateError",
    "ConcurrentDataLoader",
    "DatasetView",
    "DecodeError",
    "DropInDataLoader",
    "LoaderError",
    "LoaderStateError",
    "LoaderStats",
    "LoaderTimeout",
    "Mixture",
    "ObjectDataset",
    "RandomResizedCrop",
    "ShardDataset",
    "TooManyDecodeErrors",
    "TransformError",
    "WorkerDied",
    "collate",
]

_HOMES = {
    "Batch": "batch",
    "CenterCrop": "augment",
    "CollateError": "errors",
    "ConcurrentDataLoader": "loader",
    "DatasetView": "views",
    "DecodeError": "errors",
    "DropInDataLoader": "drop_in",
    "LoaderError": "errors",
    "LoaderStateError": "errors",
    "LoaderStats": "stats",
    "LoaderTimeout": "errors",
    "Mixture": "mixture",
    "ObjectDataset": "object_dataset",
    "RandomResizedCrop": "augment",
    "ShardDataset": "dataset",
    "TooManyDecodeErrors": "errors",
    "TransformError": "errors",
    "WorkerDied": "errors",
    "collate": "batch",
}


def __getattr__(name: str) -> object:
    """Imports a name when it is first used: the command line starts without waiting for torch."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
