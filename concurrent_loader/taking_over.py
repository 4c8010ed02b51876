"""Keeps the drop-in loader where a framework has put torch's: Accelerate and, through it, transformers.Trainer."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from concurrent_loader.drop_in import DEFAULT_IN_FLIGHT, DropInDataLoader

__all__ = ["take_over"]

# Arguments that a loader keeps as attributes of the same name.
_ARGUMENTS = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip


def take_over(loader: Any, accelerator: Any = None, *, in_flight: int | None = None) -> Any:
    """Puts a drop-in loader, with the same dataset, sampler and arguments, in the place of torch's.

    Accelerate makes a loader of torch's from any that is prepared. This gives the items of a batch, and of the next
    ones, back to the threads of the drop-in loader::

        loader = take_over(ConcurrentDataLoader(dataset, batch_size=32, num_workers=2), accelerator)

        class MyTrainer(transformers.Trainer):
            def get_train_dataloader(self):
                return take_over(super().get_train_dataloader())

    Args:
        loader: Loader of torch's, drop-in loader, or what ``accelerator.prepare`` has returned.
        accelerator: ``accelerate.Accelerator`` that prepares the loader first; None where that is done, or not wanted.
        in_flight: Items under way at once in each process; the loader's own by default, else 64.

    Returns:
        The prepared loader, changed in place, where Accelerate has prepared it; else a new `DropInDataLoader`.
    """
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
    return DropInDataLoader(loader.dataset, in_flight=in_flight, **arguments)
