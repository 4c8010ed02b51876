"""The arguments of `ConcurrentDataLoader` for type checkers and `help`: for datasets of this package, and torch's.

Which of the two loaders is made depends on the dataset (`concurrent_loader.choosing`), so there are two overloads.
A test holds them to the real signatures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.context import BaseContext
from typing import Any, Protocol, get_overloads, overload

import torch
from torch.utils.data import Dataset

from concurrent_loader.augment import Crop
from concurrent_loader.broken import OnError
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Backend, Decoder
from concurrent_loader.plan import DEFAULT_SHUFFLE_WINDOW, LastBatch
from concurrent_loader.source import LoadableDataset
from storage.public_names import PublicNames
from storage.sizes import Size

__all__ = ["LoaderArguments", "MapStyle", "MapStyleAsync", "constructor_signature", "joint_signature"]


class MapStyle(Protocol):
    """Any object whose items are read by index."""

    def __getitem__(self, index: Any, /) -> Any: ...


class MapStyleAsync(Protocol):
    """Any object whose items are read by a coroutine."""

    async def getitem_async(self, index: Any, /) -> Any: ...


class LoaderArguments(PublicNames):
    """Declares the constructor of `ConcurrentDataLoader`, and shows the signature of each class derived from it."""

    @overload
    def __init__(
        self,
        dataset: LoadableDataset,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        decode: Mapping[str, str | Decoder | Crop] | None = None,
        decoder: Backend = "auto",
        max_pixels: int = DEFAULT_MAX_PIXELS,
        on_error: OnError = "raise",
        max_errors: float = 0.01,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        last_batch: LastBatch | None = None,
        device: str | torch.device | None = None,
        pin_memory: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        groups: int | None = None,
        shuffle_window: Size = DEFAULT_SHUFFLE_WINDOW,
        num_threads: int | None = None,
        prefetch_batches: int | None = None,
        prefetch_bytes: Size = "128MiB",
        num_workers: int = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        persistent_workers: bool = False,
        timeout: float | None = 600.0,
        slow_batch_warning_s: float | None = 10.0,
    ) -> None: ...

    @overload
    def __init__(
        self,
        dataset: Dataset[Any] | MapStyle | MapStyleAsync,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        in_flight: int = 64,
        snapshot_every_n_steps: int = 1,
    ) -> None: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__signature__ = constructor_signature(cls.__init__)  # type: ignore[attr-defined]


def constructor_signature(init: Callable[..., object]) -> inspect.Signature:
    """Returns the signature of a class from that of its ``__init__``."""
    own = inspect.signature(init)
    return own.replace(parameters=list(own.parameters.values())[1:], return_annotation=inspect.Signature.empty)


def joint_signature() -> inspect.Signature:
    """Returns all arguments of both overloads: those of the first, and what only the second has, by keyword."""
    native, torchs = (constructor_signature(each) for each in get_overloads(LoaderArguments.__init__))
    more = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in torchs.parameters.items()
        if name not in native.parameters
    ]
    dataset, *others = native.parameters.values()
    either = dataset.replace(annotation=f"{dataset.annotation} | {torchs.parameters['dataset'].annotation}")
    return native.replace(parameters=[either, *others, *more])
