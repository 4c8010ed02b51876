"""`ConcurrentDataLoader`: makes the loader that fits the dataset, native or drop-in."""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Any, overload

from concurrent_loader.loader_arguments import (
    class_signature,
    is_read_by_item,
    joint_signature,
    refuse_drop_in_arguments,
    refuse_native_arguments,
    same_arguments,
)
from concurrent_loader.map_style.loader import DropInDataLoader
from concurrent_loader.native_loader import NativeDataLoader
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["ConcurrentDataLoader"]

_LOADERS = (NativeDataLoader, DropInDataLoader)


class ConcurrentDataLoader(NativeDataLoader, metaclass=ABCMeta):
    """Iterates over a dataset in batches, epoch after epoch.

    The dataset decides which loader is made, and so which arguments there are:

    - For a `ShardDataset`, an `ObjectDataset`, a view of one, or a `Mixture`, the object has the arguments and
      attributes of `NativeDataLoader`.
    - For any other dataset, and for a sampler, a batch sampler or ``batch_size=None``, a `DropInDataLoader` is made:
      torch's ``DataLoader`` with the same arguments.

    Both kinds are instances of ``ConcurrentDataLoader`` in the sense of `isinstance`. A class of your own derives from
    ``ConcurrentDataLoader`` (or `NativeDataLoader`) for datasets of this package, and from `DropInDataLoader` for
    others.

    Raises:
        ConfigurationError: An argument belongs to the other loader, or cannot work. Nothing has been fetched yet.

    Example:
        >>> from concurrent_loader import ConcurrentDataLoader, ShardDataset
        >>> dataset = ShardDataset("photos")
        >>> loader = ConcurrentDataLoader(dataset, batch_size=8, shuffle=True, seed=0, decode={"image": "rgb"})
        >>> [len(batch["label"]) for batch in loader]
        [8, 8, 4]
        >>> [batch.tolist() for batch in ConcurrentDataLoader([5, 6, 7], batch_size=2)]
        [[5, 6], [7]]
    """

    if TYPE_CHECKING:

        @overload
        @same_arguments(NativeDataLoader.__init__)
        def __init__(self) -> None: ...

        @overload
        @same_arguments(DropInDataLoader.__init__)
        def __init__(self) -> None: ...

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    else:

        def __new__(cls, *args, **kwargs):
            """Makes the loader that fits the dataset."""
            # `copy` and `pickle` pass no arguments; a subclass with a constructor has arguments of its own.
            if (args or kwargs) and cls.__init__ is NativeDataLoader.__init__:
                if not is_read_by_item(args, kwargs):
                    refuse_drop_in_arguments(kwargs)
                elif cls is ConcurrentDataLoader:
                    refuse_native_arguments(kwargs)
                    return DropInDataLoader(*args, **kwargs)
                else:
                    raise ConfigurationError(
                        f"{cls.__name__} derives from ConcurrentDataLoader, so it loads datasets of this package "
                        "without a sampler; for other datasets, and for samplers, derive from DropInDataLoader"
                    )
            return super().__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = class_signature(cls.__init__)  # type: ignore[attr-defined]

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return True if cls is ConcurrentDataLoader and issubclass(other, _LOADERS) else NotImplemented


ConcurrentDataLoader.__signature__ = joint_signature(  # type: ignore[attr-defined]
    NativeDataLoader.__init__, DropInDataLoader.__init__
)
