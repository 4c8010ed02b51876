"""Train from a bucket as fast as from a local drive: batches for torch from shards in object storage."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent_loader.augment import (
        Augment,
        CenterCrop,
        ColorJitter,
        CutMix,
        GaussianBlur,
        MixUp,
        MixUpOrCutMix,
        Normalize,
        RandomGrayscale,
        RandomHorizontalFlip,
        RandomResizedCrop,
        RandomVerticalFlip,
        ToDtype,
    )
    from concurrent_loader.batch import Batch, collate
    from concurrent_loader.dataset import ShardDataset
    from concurrent_loader.drop_in import DropInDataLoader
    from concurrent_loader.errors import (
        CollateError,
        DecodeError,
        DeviceError,
        DeviceMemoryError,
        LoaderError,
        LoaderStateError,
        LoaderTimeout,
        TooManyDecodeErrors,
        TransformError,
        WorkerCountError,
        WorkerDied,
    )
    from concurrent_loader.loader import ConcurrentDataLoader
    from concurrent_loader.mixture import Mixture
    from concurrent_loader.object_dataset import ObjectDataset
    from concurrent_loader.stats import LoaderStats
    from concurrent_loader.taking_over import take_over
    from concurrent_loader.views import DatasetView

__all__ = [
    "Augment",
    "Batch",
    "CenterCrop",
    "CollateError",
    "ColorJitter",
    "ConcurrentDataLoader",
    "CutMix",
    "DatasetView",
    "DecodeError",
    "DeviceError",
    "DeviceMemoryError",
    "DropInDataLoader",
    "GaussianBlur",
    "LoaderError",
    "LoaderStateError",
    "LoaderStats",
    "LoaderTimeout",
    "MixUp",
    "MixUpOrCutMix",
    "Mixture",
    "Normalize",
    "ObjectDataset",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "ShardDataset",
    "ToDtype",
    "TooManyDecodeErrors",
    "TransformError",
    "WorkerCountError",
    "WorkerDied",
    "collate",
    "take_over",
]

_HOMES = {
    "Augment": "augment",
    "Batch": "batch",
    "CenterCrop": "augment",
    "CollateError": "errors",
    "ColorJitter": "augment",
    "ConcurrentDataLoader": "loader",
    "CutMix": "augment",
    "DatasetView": "views",
    "DecodeError": "errors",
    "DeviceError": "errors",
    "DeviceMemoryError": "errors",
    "DropInDataLoader": "drop_in",
    "GaussianBlur": "augment",
    "LoaderError": "errors",
    "LoaderStateError": "errors",
    "LoaderStats": "stats",
    "LoaderTimeout": "errors",
    "MixUp": "augment",
    "MixUpOrCutMix": "augment",
    "Mixture": "mixture",
    "Normalize": "augment",
    "ObjectDataset": "object_dataset",
    "RandomGrayscale": "augment",
    "RandomHorizontalFlip": "augment",
    "RandomResizedCrop": "augment",
    "RandomVerticalFlip": "augment",
    "ShardDataset": "dataset",
    "ToDtype": "augment",
    "TooManyDecodeErrors": "errors",
    "TransformError": "errors",
    "WorkerCountError": "errors",
    "WorkerDied": "errors",
    "collate": "batch",
    "take_over": "taking_over",
}


def __getattr__(name: str) -> object:
    """Imports a name when it is first used: the command line starts without waiting for torch."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
