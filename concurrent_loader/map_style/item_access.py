"""Methods by which the items of a torch dataset can be read.

The first of these that exists is used: ``getitems_async(indices)``, ``getitem_async(index)``,
``__getitems__(indices)``, ``__getitem__(index)``. The first two are coroutine functions. They count only if no subclass
of the class that defines them redefines one of the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from torch.utils.data import StackDataset, Subset

from concurrent_loader.map_style.worker_errors import replace_stop_iteration

__all__ = ["ItemAccess", "MapStyle", "MapStyleAsync", "item_access_of"]


class MapStyle(Protocol):
    """Any object whose items are read by index."""

    def __getitem__(self, index: Any, /) -> Any: ...


class MapStyleAsync(Protocol):
    """Any object whose items are read by a coroutine."""

    async def getitem_async(self, index: Any, /) -> Any: ...


class ItemAccess:
    """Methods of a dataset that read items.

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
            raise replace_stop_iteration(error, f"dataset[{index!r}]") from error


_NOWHERE = 1 << 30


def _depth(dataset: object, name: str) -> int:
    """Returns how far up from a dataset's class a method is defined.

    A class that overrides ``__getitem__`` has changed what an item is. Coroutines that it inherits, or forwards from
    another object by ``__getattr__``, would return another item.
    """
    classes = type(dataset).__mro__
    return next((depth for depth, cls in enumerate(classes) if name in vars(cls)), _NOWHERE)


def item_access_of(dataset: Any) -> ItemAccess:
    """Returns the methods of a dataset that read items.

    torch's Subset and StackDataset always have ``__getitems__``. If no dataset inside them has one, it is a plain
    loop, and ignored so that a batch's items can be read at once. A Subset has the coroutines of the dataset inside it.
    """
    access = ItemAccess(dataset)
    if type(dataset) is Subset:
        below, numbers = item_access_of(dataset.dataset), dataset.indices
        if below.batch is None:
            access.batch = None
        if (one := below.item_async) is not None:
            access.item_async = lambda index: one(numbers[index])
        if (many := below.batch_async) is not None:
            access.batch_async = lambda indices: many([numbers[index] for index in indices])
    elif type(dataset) is StackDataset:
        parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
        if all(item_access_of(part).batch is None for part in parts):
            access.batch = None
    return access
