"""Keeps the drop-in under frameworks that replace it by torch's loader: Accelerate and transformers.Trainer."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from concurrent_loader.map_style.loader import DEFAULT_IN_FLIGHT, DropInDataLoader
from concurrent_loader.native_loader import NativeDataLoader
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["skip_first_batches", "take_over"]

# Arguments of a loader that are also its attributes.
_ARGUMENTS = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip


def take_over(loader: Any, accelerator: Any = None, *, in_flight: int | None = None) -> Any:
    """Replaces torch's loader by a drop-in with the same dataset, sampler and arguments.

    Accelerate replaces each prepared loader by one of torch's. This function puts the drop-in back, so that items are
    read many at once again::

        loader = take_over(ConcurrentDataLoader(dataset, batch_size=32, num_workers=2), accelerator)

        class MyTrainer(transformers.Trainer):
            def get_train_dataloader(self):
                return take_over(super().get_train_dataloader())

    Args:
        loader: Loader of torch's, drop-in, or result of ``accelerator.prepare``.
        accelerator: ``accelerate.Accelerator`` that prepares the loader first; default None, no preparation.
        in_flight: Number of items read at once in each process; default that of the loader, else 64.

    Returns:
        The prepared loader, changed in place, if Accelerate has prepared it. A native loader, which Accelerate leaves
        alone, is returned unchanged. Otherwise a new `DropInDataLoader`.

    Example:
        >>> from concurrent_loader import take_over
        >>> from torch.utils.data import DataLoader
        >>> loader = take_over(DataLoader([5, 6, 7], batch_size=2), in_flight=8)
        >>> loader.in_flight, [batch.tolist() for batch in loader]
        (8, [[5, 6], [7]])
    """
    if isinstance(loader, NativeDataLoader):
        return loader
    if in_flight is None:
        in_flight = getattr(loader, "in_flight", DEFAULT_IN_FLIGHT)
    if accelerator is not None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="accelerator.prepare")
            loader = accelerator.prepare(loader)
    if "base_dataloader" not in vars(loader):
        return _like(loader, in_flight)
    loader.base_dataloader = _like(loader.base_dataloader, in_flight)
    loader.dl_state_dict = loader.base_dataloader.state_dict()
    return loader


def _like(loader: DataLoader[Any], in_flight: int) -> DropInDataLoader:
    arguments = {name: getattr(loader, name) for name in _ARGUMENTS}
    if isinstance(loader.dataset, IterableDataset):
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        arguments["batch_sampler"] = loader.batch_sampler
    else:
        arguments |= {"batch_size": None, "sampler": loader.sampler}
    if not isinstance(loader, DropInDataLoader):
        return DropInDataLoader(loader.dataset, in_flight=in_flight, **arguments)
    arguments["snapshot_every_n_steps"] = loader.snapshot_every_n_steps
    made = DropInDataLoader(loader.dataset, in_flight=in_flight, **arguments)
    if loader.is_resumed:
        made.load_state_dict(loader.state_dict())
    return made


def skip_first_batches(loader: Any, num_batches: int) -> Any:
    """Makes the next iteration start after some batches of the epoch, for a loop that counts its batches itself.

    Use it in place of ``accelerate.skip_first_batches``, which cannot make a loader of torch's from a native one::

        loader.set_epoch(3)
        for batch in skip_first_batches(loader, 120):  # epoch 3 without its first 120 batches
            ...

    Args:
        loader: Native loader. The skipped batches are not fetched.
        num_batches: Number of batches of the epoch to skip.

    Returns:
        The same loader.

    Raises:
        ConfigurationError: The loader is not a native one.
        LoaderStateError: The epoch has fewer batches.

    Example:
        >>> from concurrent_loader import NativeDataLoader, ShardDataset, skip_first_batches
        >>> loader = NativeDataLoader(ShardDataset("photos"), batch_size=8)
        >>> [len(batch["label"]) for batch in skip_first_batches(loader, 1)]
        [8, 4]
    """
    if not isinstance(loader, NativeDataLoader):
        raise ConfigurationError(
            "only a native loader can skip batches in this way; use accelerate.skip_first_batches, or load_state_dict",
            got=type(loader).__name__,
        )
    loader.load_state_dict({**loader.state_dict(), "step": num_batches})
    return loader
