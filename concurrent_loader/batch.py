"""Puts samples together: from a list of samples, or from whole columns, to one batch of tensors.

dtypes are kept exactly. What has no place in a tensor (str, bytes, JSON values) stays a list with one entry a sample.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.errors import CollateError
from concurrent_loader.shared_memory import empty
from storage.public_names import PublicNames

__all__ = ["Batch", "collate", "collate_columns", "to_device"]

_ADVICE = "make them equal in a transform (resize, crop, pad), or give the loader a collate_fn"
_IN_NUMPY = frozenset(torch.from_numpy(np.empty(0, dtype)).dtype for dtype in "?bhilBHILefd")


class Batch(PublicNames, dict[str, Any]):
    """Columns of a batch, with its place in the order of samples.

    Attributes:
        epoch: The epoch that it belongs to.
        step: Its number in that epoch.
        sample_ids: (N,) int64 on the CPU, the samples' numbers in the data set; empty where they are unknown.
        num_padded: How many samples at the end only fill the batch up.
        sources: (N,) int64 on the CPU, which data set of a `Mixture` each sample comes from; empty without one.
    """

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        epoch: int = 0,
        step: int = 0,
        sample_ids: torch.Tensor | None = None,
        num_padded: int = 0,
        sources: torch.Tensor | None = None,
    ) -> None:
        super().__init__(data or {})
        self.epoch = epoch
        self.step = step
        self.sample_ids = torch.empty(0, dtype=torch.int64) if sample_ids is None else sample_ids
        self.num_padded = num_padded
        self.sources = torch.empty(0, dtype=torch.int64) if sources is None else sources

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Returns the batch with its tensors on a device, those in lists too; ``sample_ids`` stay on the CPU."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Returns the batch with its CPU tensors in page-locked memory, from which a device copies asynchronously."""
        return self._mapped(lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)

    def _mapped(self, change: Any) -> Self:
        def changed(value: Any) -> Any:
            if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
                return [changed(each) for each in value]
            return change(value) if isinstance(value, torch.Tensor) else value

        return self.with_columns({name: changed(value) for name, value in self.items()})

    def with_columns(self, data: Mapping[str, Any]) -> Self:
        """Returns a batch of other columns in the same place of the order."""
        return type(self)(
            data,
            epoch=self.epoch,
            step=self.step,
            sample_ids=self.sample_ids,
            num_padded=self.num_padded,
            sources=self.sources,
        )

    def __iter__(self) -> Iterator[str]:
        """Iterates over the columns' names; refuses ``x, y = batch``, which would get names where values are meant."""
        if _is_unpacking(sys._getframe(1)):
            names = ", ".join(map(repr, self.keys()))
            raise TypeError(
                f"a batch is a mapping and cannot be unpacked into its columns ({names}): write "
                "`for batch in loader: x, y = batch[name], batch[other]`, or `x, y = batch.values()`"
            )
        return super().__iter__()

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {_describe(value)}" for name, value in self.items())
        return f"Batch(epoch={self.epoch}, step={self.step}, {{{columns}}})"


_UNPACKING = frozenset(dis.opmap[name] for name in ("UNPACK_SEQUENCE", "UNPACK_EX"))


def _is_unpacking(frame: FrameType) -> bool:
    """Returns whether a frame's instruction under way unpacks a sequence; the bytecode is CPython's."""
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] in _UNPACKING


def to_device(batch: Batch, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
    """Returns a batch with its tensors on a device."""
    return batch.to(device, non_blocking=non_blocking)


def collate(samples: Sequence[Mapping[str, Any]], *, mixed: Collection[str] = ()) -> Batch:
    """Makes a batch of samples that exist one by one.

    Tensors and arrays of one shape and dtype are stacked: (N, *shape). numpy scalars keep their dtype. Python numbers
    become what torch's own collate makes of them: bool, int64, float64. Everything else becomes a list.

    Args:
        samples: Dicts with the same columns.
        mixed: Columns whose tensors stay a list where their shapes or dtypes differ.

    Raises:
        CollateError: A sample is no dict, samples have different columns, or a column's shapes or dtypes differ.
    """
    if not samples:
        raise CollateError("there are no samples to make a batch of")
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
                f"sample {place} of the batch has other columns than the first", expected=names, got=list(sample)
            )
    return Batch({name: _collate_values(name, [sample[name] for sample in samples], name in mixed) for name in names})


def collate_columns(
    columns: Mapping[str, torch.Tensor | npt.NDArray[Any] | Sequence[Any]], *, mixed: Collection[str] = ()
) -> Batch:
    """Makes a batch of whole columns; nothing is done sample by sample that need not be.

    Args:
        columns: Name → (N, *shape) tensor, which is taken as it is; or array, which becomes a tensor without a copy if
            it is writable and native; or a sequence of N values: tensors and arrays are stacked, the rest stays a list.
        mixed: Columns whose tensors stay a list where their shapes or dtypes differ.

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
    # pictures of 375 x 500 took 30 ms by numpy, and 60 to 500 ms by torch.stack on two loaded cores.
    whole = empty((len(tensors), *first.shape), first.dtype)
    np.stack([tensor.numpy() for tensor in tensors], out=whole.numpy())
    return whole


def _check_alike(name: str, values: Sequence[Any], kind: type) -> None:
    """Makes sure that values can be stacked."""
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
    """Makes a tensor of an array, without a copy where torch can write to its memory."""
    if array.dtype.kind in "US":
        return array.tolist()
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    # torch knows neither read-only memory nor negative strides.
    if not native.flags.writeable or any(stride < 0 for stride in native.strides):
        native = native.copy()
    try:
        return torch.from_numpy(native)
    except TypeError as error:
        raise CollateError("torch has no such dtype", column=name, got=str(array.dtype)) from error


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}"
    return f"list of {len(value)}" if isinstance(value, list) else type(value).__name__
