"""Collates a list of samples, or whole columns, to one batch of tensors.

dtypes are kept exactly. Values that do not fit into a tensor (str, bytes, JSON) stay a list with one entry per sample.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.batch.batch import Batch
from concurrent_loader.batch.shared_memory import empty
from concurrent_loader.errors import CollateError

__all__ = ["collate", "collate_columns"]

_ADVICE = "make them equal in a transform (resize, crop, pad), or give the loader a collate_fn"
_IN_NUMPY = frozenset(torch.from_numpy(np.empty(0, dtype)).dtype for dtype in "?bhilBHILefd")


def collate(samples: Sequence[Mapping[str, Any]], *, mixed: Collection[str] = ()) -> Batch:
    """Collates a list of samples to a batch.

    Tensors and arrays of one shape and dtype are stacked: (N, *shape). numpy scalars keep their dtype. Python numbers
    become the same dtypes as in torch's ``default_collate``: bool, int64, float64. All other values become a list.

    Args:
        samples: Dicts with the same columns; at least one.
        mixed: Columns whose tensors stay a list if their shapes or dtypes differ. Default: none.

    Returns:
        A batch with the samples' columns, on the CPU unless the samples' tensors are on a device.

    Raises:
        CollateError: A sample is not a dict, samples have different columns, or a column's shapes or dtypes differ.

    Example:
        >>> from concurrent_loader import collate
        >>> collate([{"label": 3, "name": "cat"}, {"label": 5, "name": "dog"}])
        Batch(epoch=0, step=0, {label: (2,) int64 on cpu, name: list of 2})
    """
    if not samples:
        raise CollateError("cannot collate an empty list of samples")
    for sample in samples:
        if not isinstance(sample, Mapping):
            raise CollateError(
                "a sample must be a dict; let the transform return one, or give the loader a collate_fn",
                got=type(sample).__name__,
            )
    names = list(samples[0])
    for place, sample in enumerate(samples):
        if sample.keys() != samples[0].keys():
            raise CollateError(
                f"sample {place} of the batch has different columns from the first sample",
                expected=names,
                got=list(sample),
            )
    return Batch({name: _collate_values(name, [sample[name] for sample in samples], name in mixed) for name in names})


def collate_columns(
    columns: Mapping[str, torch.Tensor | npt.NDArray[Any] | Sequence[Any]], *, mixed: Collection[str] = ()
) -> Batch:
    """Collates whole columns to a batch, without work per sample where possible.

    Args:
        columns: Values of each column. A (N, *shape) tensor is used as it is. An array becomes a tensor, without a copy
            if it is writable and in native byte order. In a sequence of N values, tensors and arrays are stacked; other
            values stay a list.
        mixed: Columns whose tensors stay a list if their shapes or dtypes differ. Default: none.

    Raises:
        CollateError: Columns differ in length, or a column's shapes or dtypes differ.
    """
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise CollateError("columns of a batch differ in length", got=lengths)
    return Batch({name: _collate_column(name, values, name in mixed) for name, values in columns.items()})


def _collate_column(name: str, values: torch.Tensor | npt.NDArray[Any] | Sequence[Any], may_differ: bool) -> Any:
    if isinstance(values, torch.Tensor):
        return values
    if isinstance(values, np.ndarray):
        return _from_array(name, values)
    if any(isinstance(value, torch.Tensor | np.ndarray) for value in values):
        return _collate_values(name, values, may_differ)
    return list(values)  # a JSON column stays a list, even in a batch where all of its values are numbers


def _collate_values(name: str, values: Sequence[Any], may_differ: bool = False) -> Any:
    kinds = set(map(type, values))
    if may_differ and kinds == {torch.Tensor} and len({(value.shape, value.dtype) for value in values}) > 1:
        return list(values)
    if any(issubclass(kind, torch.Tensor) for kind in kinds):
        _check_alike(name, values, torch.Tensor)
        return _stack(list(values))
    if any(issubclass(kind, np.ndarray) for kind in kinds):
        _check_alike(name, values, np.ndarray)
        return _from_array(name, np.stack(values))
    if all(issubclass(kind, np.bool_ | np.number) for kind in kinds):
        return _from_array(name, np.array(values))
    if kinds == {bool}:
        return torch.tensor(values, dtype=torch.bool)
    if kinds == {int}:
        return _integers(name, values)
    if kinds <= {int, float}:
        return torch.tensor(values, dtype=torch.float64)
    return list(values)


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Stacks tensors of one shape and dtype into contiguous memory."""
    first = tensors[0]
    plain = first.device.type == "cpu" and first.layout is torch.strided and first.dtype in _IN_NUMPY
    if not plain or any(tensor.requires_grad for tensor in tensors):
        return torch.stack(tensors)
    # numpy copies on this thread alone. torch.stack splits each copy over all cores, which are busy decoding: 64
    # images of 375 x 500 took 30 ms with numpy, and 60 to 500 ms with torch.stack on two loaded cores.
    whole = empty((len(tensors), *first.shape), first.dtype)
    np.stack([tensor.numpy() for tensor in tensors], out=whole.numpy())
    return whole


def _check_alike(name: str, values: Sequence[Any], kind: type) -> None:
    """Checks that values can be stacked."""
    strange = next((value for value in values if not isinstance(value, kind)), None)
    if strange is not None or any(value is None for value in values):
        got = sorted({type(value).__name__ for value in values})
        raise CollateError(f"samples have values of different types; {_ADVICE}", column=name, got=got)
    for what in ("shape", "dtype", "device"):
        found = dict.fromkeys(_facts(value, what) for value in values)
        if len(found) > 1:
            shown = [*list(found)[:8], *(["…"] if len(found) > 8 else [])]
            raise CollateError(f"samples differ in {what}; {_ADVICE}", column=name, got=shown)


def _facts(value: Any, what: str) -> Any:
    fact = getattr(value, what, "cpu")  # numpy has devices from 2.0 on
    return tuple(fact) if what == "shape" else str(fact)


def _integers(name: str, values: Sequence[int]) -> torch.Tensor:
    try:
        return torch.tensor(values, dtype=torch.int64)
    except (OverflowError, ValueError, RuntimeError) as error:
        raise CollateError("a number does not fit into int64", column=name) from error


def _from_array(name: str, array: npt.NDArray[Any]) -> Any:
    """Makes a tensor of an array, without a copy if torch can write to the array's memory."""
    if array.dtype.kind in "US":
        return array.tolist()
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    # torch supports neither read-only memory nor negative strides.
    if not native.flags.writeable or any(stride < 0 for stride in native.strides):
        native = native.copy()
    try:
        return torch.from_numpy(native)
    except TypeError as error:
        raise CollateError("torch has no tensor of this dtype", column=name, got=str(array.dtype)) from error
