"""Which loader serves a data set: the native one for data sets of this package, the drop-in for any other of torch's.

Also what to say to those who pass an argument of the one to the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

from concurrent_loader.mixture import Mixture
from concurrent_loader.views import Selectable
from storage.errors import ConfigurationError

__all__ = ["MISSING", "choose_class", "has_native_loader", "not_native", "refuse_native"]

MISSING: Final = object()  # no data set at all: an object is being unpickled

_POSITIONAL = ("batch_size", "shuffle", "sampler", "batch_sampler")
# Arguments of torch's that the native loader does not have, and what to do instead.
_TORCH_ONLY = {
    "generator": "the order comes from seed=",
    "in_flight": "it belongs to the data set: ShardDataset(…, in_flight=…)",
    "in_order": "batches always come in order",
    "pin_memory_device": "leave it out: device= says where batches go",
    "snapshot_every_n_steps": "leave it out: a state is a few numbers, of any step",
    "prefetch_factor": "prefetch_batches= says how many batches are made ahead",
}
# Arguments of the native loader that torch's does not have.
_NATIVE_ONLY = {
    "batch_transform": "call it in the loop",
    "decode": "decode in the data set's __getitem__",
    "decoder": "decode in the data set's __getitem__",
    "device": "move batches to the device in the loop, with pin_memory=True",
    "groups": "leave it out: the order is the sampler's",
    "last_batch": "drop_last= says what becomes of it",
    "max_errors": "answer for broken samples in the data set's __getitem__",
    "max_pixels": "decode in the data set's __getitem__",
    "num_threads": "in_flight= says how many items are got at once",
    "on_error": "answer for broken samples in the data set's __getitem__",
    "prefetch_batches": "prefetch_factor= says how many batches each worker makes ahead",
    "prefetch_bytes": "in_flight= bounds what is got ahead",
    "rank": "pass sampler=torch.utils.data.DistributedSampler(…)",
    "seed": "pass generator=torch.Generator().manual_seed(…)",
    "slow_batch_warning_s": "timeout= bounds the wait",
    "shuffle_window": "leave it out: the order is the sampler's",
    "transform": "transform in the data set's __getitem__",
    "world_size": "pass sampler=torch.utils.data.DistributedSampler(…)",
}


def has_native_loader(dataset: object) -> bool:
    """Says whether a data set is one of this package, which is read shard by shard."""
    return isinstance(dataset, Selectable | Mixture)


def choose_class(cls: type, native: type, dataset: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> type:
    """Says of which class ``cls(dataset, *args, **kwargs)`` becomes an instance.

    A data set of this package with a sampler, a batch sampler or ``batch_size=None`` is served item by item.

    Raises:
        ConfigurationError: There is none, or an argument belongs to the other loader.
    """
    # The drop-in and what derives from it have arguments of their own.
    own_arguments = cls is not native and cls.__init__ is not native.__init__  # type: ignore[misc]
    if dataset is MISSING or own_arguments:
        return cls
    given = {**dict(zip(_POSITIONAL, args, strict=False)), **kwargs}
    by_item = (
        given.get("sampler") is not None or given.get("batch_sampler") is not None or given.get("batch_size", 1) is None
    )
    if has_native_loader(dataset) and not by_item:
        _refuse_torch(cls, kwargs)
        return cls
    if cls is not native:
        raise not_native(cls, dataset)
    from concurrent_loader.drop_in import DropInDataLoader  # derives from the loader that asks; 15 ms, for its users

    return DropInDataLoader


def not_native(cls: type, dataset: object) -> ConfigurationError:
    """What is wrong with a class of the user's that derives from the native loader and gets what that cannot serve."""
    return ConfigurationError(
        f"{cls.__name__} derives from ConcurrentDataLoader, which serves this package's data sets batch by batch; "
        "for other data sets and for samplers derive from DropInDataLoader",
        got=type(dataset).__name__,
    )


def refuse_native(options: Mapping[str, Any]) -> None:
    """Complains about arguments of the native loader, or of none.

    Raises:
        ConfigurationError: Says what to do instead.
        TypeError: No loader has it.
    """
    for name in options:
        if name not in _NATIVE_ONLY:
            raise TypeError(f"DropInDataLoader.__init__() got an unexpected keyword argument {name!r}")
        raise ConfigurationError(
            f"{name} is not for a torch data set, or for a sampler of torch's; {_NATIVE_ONLY[name]}"
        )


def _refuse_torch(cls: type, options: Mapping[str, Any]) -> None:
    known = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    for name in options:
        if name not in known and name in _TORCH_ONLY:
            raise ConfigurationError(f"{name} is not for a data set of this package; {_TORCH_ONLY[name]}")
