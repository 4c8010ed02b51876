"""What a torch data set offers to be asked for: between the user's class and those who get its items.

The best of these is used: ``getitems_async(indices)``, ``getitem_async(index)``, ``__getitems__(indices)``,
``__getitem__(index)``, in this order. The first two are coroutine functions; they count only if no class below the one
that defines them redefines one of the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from torch.utils.data import StackDataset, Subset

from concurrent_loader.worker_errors import no_stop_iteration

__all__ = ["ItemWay", "way_of"]


class ItemWay:
    """What a data set offers.

    Attributes:
        item_async: ``getitem_async`` or None.
        batch_async: ``getitems_async`` or None.
        batch: ``__getitems__`` or None.
    """

    def __init__(self, dataset: Any) -> None:
        item, batch = (_depth(dataset, name) for name in ("__getitem__", "__getitems__"))
        item_async, batch_async = (_depth(dataset, name) for name in ("getitem_async", "getitems_async"))
        self.item_async: Callable[[Any], Awaitable[Any]] | None = None
        self.batch_async: Callable[[Any], Awaitable[Any]] | None = None
        if item_async <= min(item, batch, _NOWHERE - 1):
            self.item_async = dataset.getitem_async
        if batch_async <= min(item, batch, item_async, _NOWHERE - 1):
            self.batch_async = dataset.getitems_async
        # torch's own test is the attribute's truth
        self.batch: Callable[[Any], Any] | None = getattr(dataset, "__getitems__", None) or None
        self._dataset = dataset

    def item(self, index: Any) -> Any:
        """Returns ``dataset[index]``."""
        try:
            return self._dataset[index]
        except StopIteration as error:
            raise no_stop_iteration(error, f"dataset[{index!r}]") from error


_NOWHERE = 1 << 30


def _depth(dataset: object, name: str) -> int:
    """How far up from a data set's class a method is defined.

    A class that overrides ``__getitem__`` has changed what an item is; coroutines that it inherits, or that it passes
    on from another object by ``__getattr__``, are then of another item.
    """
    classes = type(dataset).__mro__
    return next((depth for depth, cls in enumerate(classes) if name in vars(cls)), _NOWHERE)


def way_of(dataset: Any) -> ItemWay:
    """Finds out what a data set offers.

    torch's Subset and StackDataset have a ``__getitems__`` in any case; where nothing below them has one it is a plain
    loop, and no reason to get a batch's items one after the other. A Subset offers what its data set offers.
    """
    way = ItemWay(dataset)
    if type(dataset) is Subset:
        below, numbers = way_of(dataset.dataset), dataset.indices
        if below.batch is None:
            way.batch = None
        if (one := below.item_async) is not None:
            way.item_async = lambda index: one(numbers[index])
        if (many := below.batch_async) is not None:
            way.batch_async = lambda indices: many([numbers[index] for index in indices])
    elif type(dataset) is StackDataset:
        parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
        if all(way_of(part).batch is None for part in parts):
            way.batch = None
    return way
