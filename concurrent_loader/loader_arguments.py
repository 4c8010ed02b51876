"""Arguments of the two loaders: which loader serves a dataset, and what replaces an argument of the other one.

This module imports neither loader.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec

from torch.utils.data import BatchSampler, Sampler

from concurrent_loader.datasets.mixture import Mixture
from concurrent_loader.datasets.torch_sampler import sampler_batches
from concurrent_loader.datasets.views import Selectable
from concurrent_loader.order.batching import ByLength
from concurrent_loader.order.options import LastBatch, PlanOptions
from concurrent_loader.order.packing import Packed
from concurrent_loader.order.sampler_batches import SamplerBatches
from concurrent_loader.storage.errors import ConfigurationError

__all__ = [
    "Batching",
    "check_batching",
    "check_native_dataset",
    "class_signature",
    "has_native_loader",
    "is_read_by_item",
    "joint_signature",
    "last_batch_policy",
    "num_threads_and_batches",
    "positive",
    "refuse_drop_in_arguments",
    "refuse_native_arguments",
    "same_arguments",
    "warn_if_empty",
]

P = ParamSpec("P")
Batching = ByLength | Packed | Sampler[Any]

_POSITIONAL = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")
# Arguments of the drop-in that the native loader does not have → what to do instead.
_DROP_IN_ONLY = {
    "generator": "pass seed=, which determines the order",
    "in_flight": "pass it to the dataset: ShardDataset(…, in_flight=…)",
    "in_order": "leave it out: batches always come in order",
    "pin_memory_device": "leave it out: device= names the device",
    "snapshot_every_n_steps": "leave it out: every state is exact",
    "prefetch_factor": "pass prefetch_batches=, the number of batches made ahead",
}
# Arguments of the native loader that the drop-in does not have → what to do instead.
_NATIVE_ONLY = {
    "as_tuple": "return tuples in the dataset's __getitem__",
    "batching": "pass batch_sampler= with batches of your own",
    "batch_transform": "call it in the loop",
    "decode": "decode in the dataset's __getitem__",
    "decoder": "decode in the dataset's __getitem__",
    "device": "move batches to the device in the loop, with pin_memory=True",
    "groups": "leave it out: the sampler determines the order",
    "last_batch": "pass drop_last= to leave out a short last batch",
    "max_errors": "handle broken samples in the dataset's __getitem__",
    "max_pixels": "decode in the dataset's __getitem__",
    "num_threads": "pass in_flight=, the number of items read at once",
    "on_error": "handle broken samples in the dataset's __getitem__",
    "prefetch_batches": "pass prefetch_factor=, the number of batches that each worker makes ahead",
    "prefetch_bytes": "pass in_flight=, which bounds how many items are read ahead",
    "ragged": "pass collate_fn=functools.partial(concurrent_loader.collate, ragged=…)",
    "recorder": "leave it out: a sampler of your own determines the order, which cannot be proved",
    "rank": "pass sampler=torch.utils.data.DistributedSampler(…)",
    "sampling": "pass sampler=torch.utils.data.WeightedRandomSampler(…)",
    "seed": "pass generator=torch.Generator().manual_seed(…)",
    "slow_batch_warning_s": "pass timeout=, which bounds the wait",
    "shuffle_window": "leave it out: the sampler determines the order",
    "transform": "transform in the dataset's __getitem__",
    "world_size": "pass sampler=torch.utils.data.DistributedSampler(…)",
}


def check_batching(
    batching: Batching | None, batch_size: int, *, is_sampled: bool
) -> ByLength | Packed | SamplerBatches | None:
    """Returns the batching for the plan's options.

    Raises:
        ConfigurationError: The size of a batch, or the order of samples, is given twice.
    """
    if isinstance(batching, ByLength) and batching.max_tokens is not None and batch_size != 1:
        raise ConfigurationError("max_tokens= determines the size of batches; leave batch_size out", got=batch_size)
    if not isinstance(batching, Sampler):
        return batching
    if is_sampled:
        raise ConfigurationError("a sampler determines the samples itself; leave sampling= out")
    if isinstance(batching, BatchSampler) and batch_size != 1:
        raise ConfigurationError("a batch sampler determines the size of batches; leave batch_size out", got=batch_size)
    return sampler_batches(batching)


def warn_if_empty(options: PlanOptions, num_steps: int) -> None:
    """Warns the caller of a loader whose ``drop_last`` leaves no batch."""
    if options.last_batch == "drop" and not num_steps:
        warnings.warn(
            "drop_last leaves no batch: the dataset has fewer samples than the global batch size, "
            f"{options.global_batch_size}. Pass a smaller batch_size, or last_batch='short' or 'pad'",
            stacklevel=3,
        )


def has_native_loader(dataset: object) -> bool:
    """Returns whether a dataset is one of this package, which the native loader reads shard by shard."""
    return isinstance(dataset, Selectable | Mixture)


def check_native_dataset(cls: type, dataset: object) -> None:
    """Checks that the native loader can serve a dataset.

    Raises:
        ConfigurationError: The dataset is not one of this package.
    """
    if not has_native_loader(dataset):
        raise ConfigurationError(
            f"{cls.__name__} loads datasets of this package only; for other datasets, and for samplers, "
            "derive from DropInDataLoader",
            got=type(dataset).__name__,
        )


def is_read_by_item(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a loader's arguments ask for the drop-in.

    The native loader serves datasets of this package. The drop-in serves all others, and those of this package with a
    sampler, a batch sampler or ``batch_size=None``.

    Args:
        args: Positional arguments, the dataset first.
        kwargs: Keyword arguments.
    """
    given = {**dict(zip(_POSITIONAL, args, strict=False)), **kwargs}
    return (
        not has_native_loader(given.get("dataset"))
        or given.get("sampler") is not None
        or given.get("batch_sampler") is not None
        or given.get("batch_size", 1) is None
    )


def refuse_native_arguments(options: Mapping[str, Any]) -> None:
    """Refuses arguments of the native loader where the drop-in is made.

    Raises:
        ConfigurationError: An argument belongs to the native loader; the message says what to do instead.
    """
    for name in options:
        if name in _NATIVE_ONLY:
            raise ConfigurationError(f"{name} is not for a torch dataset or sampler; {_NATIVE_ONLY[name]}")


def refuse_drop_in_arguments(options: Mapping[str, Any]) -> None:
    """Refuses arguments of the drop-in where the native loader is made.

    Raises:
        ConfigurationError: An argument belongs to the drop-in; the message says what to do instead.
    """
    for name in options:
        if name in _DROP_IN_ONLY:
            raise ConfigurationError(f"{name} is not for a dataset of this package; {_DROP_IN_ONLY[name]}")


def positive(name: str, value: int) -> int:
    """Returns the value of an argument.

    Raises:
        ConfigurationError: The value is not a positive integer.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} must be a positive integer", got=value)
    return value


def num_threads_and_batches(num_workers: int, num_threads: int | None, prefetch_batches: int | None) -> tuple[int, int]:
    """Returns the number of threads and the number of batches made ahead, with defaults for arguments that are None."""
    if num_threads is None:
        num_threads = num_workers or _num_cores()
    positive("num_threads", num_threads)
    if prefetch_batches is None:
        prefetch_batches = 2 * num_workers or num_threads + 2
    return num_threads, positive("prefetch_batches", prefetch_batches)


def last_batch_policy(drop_last: bool, last_batch: LastBatch | None) -> LastBatch:
    """Returns the policy for a smaller last batch.

    Raises:
        ConfigurationError: The two arguments contradict each other.
    """
    if drop_last and last_batch not in (None, "drop"):
        raise ConfigurationError("drop_last contradicts last_batch; pass one of them", got=last_batch)
    return "drop" if drop_last else last_batch or "short"


def _num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- signatures --------------------------------------------------------------------------------------------------------


def same_arguments(
    init: Callable[Concatenate[Any, P], None], /
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Declares to type checkers that a constructor takes the arguments of another one."""
    del init
    return lambda declared: declared


def class_signature(init: Callable[..., object]) -> inspect.Signature:
    """Returns the signature of a class from that of its ``__init__``."""
    own = inspect.signature(init)
    return own.replace(parameters=list(own.parameters.values())[1:], return_annotation=inspect.Signature.empty)


def joint_signature(native: Callable[..., object], drop_in: Callable[..., object]) -> inspect.Signature:
    """Returns a signature with the arguments of two constructors.

    The arguments that only the second one has are keyword-only.

    Args:
        native: Constructor of the native loader.
        drop_in: Constructor of the drop-in.
    """
    first, second = class_signature(native), class_signature(drop_in)
    more = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in second.parameters.items()
        if name not in first.parameters
    ]
    dataset, *others = first.parameters.values()
    either = dataset.replace(annotation=f"{dataset.annotation} | {second.parameters['dataset'].annotation}")
    return first.replace(parameters=[either, *others, *more])
