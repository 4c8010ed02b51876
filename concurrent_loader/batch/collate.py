"""Collates a list of samples, or whole columns, to one batch of tensors.

dtypes are kept exactly. Values that do not fit into a tensor (str, bytes, JSON) stay a list with one entry per sample.
Tensors and arrays of different shapes are arranged by `concurrent_loader.batch.ragged`, and a list of tensors without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.batch.batch import Batch
from concurrent_loader.batch.encoded_rows import EncodedRows
from concurrent_loader.batch.ragged import (
    Ragged,
    RaggedColumn,
    RaggedOption,
    arrange,
    is_in_numpy,
    ragged_columns,
)
from concurrent_loader.batch.shared_memory import empty
from concurrent_loader.errors import CollateError
from concurrent_loader.storage.shards.format.nulls import default_value, null_rows
from concurrent_loader.storage.shards.format.schema import Column

__all__ = ["collate", "collate_columns"]

_ADVICE = "make them equal in a transform, or give the loader a collate_fn"


def collate(
    samples: Sequence[Mapping[str, Any]],
    *,
    ragged: Mapping[str, RaggedOption] | None = None,
    images: Collection[str] = (),
    staged: bool = False,
    optional: Mapping[str, Column] | None = None,
) -> Batch:
    """Collates a list of samples to a batch.

    Tensors and arrays of one shape and dtype are stacked: (N, *shape). Those of different shapes become a list of
    tensors. numpy scalars keep their dtype. Python numbers become the same dtypes as in torch's ``default_collate``:
    bool, int64, float64. All other values become a list. Tensors in the batch can be written to.

    Args:
        samples: Dicts with the same columns; at least one.
        ragged: Column → ``"list"`` (also if all shapes are equal), ``"pad"``, `Pad`, ``"nested"`` or ``"packed"``; see
            docs/how-to/ragged.md. Default: none. Values of these columns may also be lists of numbers.
        images: Columns of whole images, (C, H, W). They may also differ in dtype. Default: none.
        staged: Whether ragged columns stay in one block for the device stage; False by default.
        optional: Columns of numbers and arrays whose values may be None. Such a column gets a companion,
            ``<name>_valid``, (N,) bool. None becomes 0, False or NaN, or an empty array if shapes may differ. Default:
            none; then a column of numbers with a None stays a list.

    Returns:
        A batch with the samples' columns, on the CPU unless the samples' tensors are on a device.

    Raises:
        CollateError: A sample is not a dict, samples have different columns, or a column's types or dtypes differ.

    Example:
        >>> from concurrent_loader import collate
        >>> collate([{"label": 3, "name": "cat"}, {"label": 5, "name": "dog"}])
        Batch(epoch=0, step=0, {label: (2,) int64 on cpu, name: list of 2})
        >>> from concurrent_loader.storage import Column
        >>> collate([{"age": 3}, {"age": None}], optional={"age": Column("age", "int64?")})["age_valid"]
        tensor([ True, False])
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
    rules = _Rules(ragged_columns(ragged), images, staged, optional or {})
    return _join({name: _collate_values(name, [sample[name] for sample in samples], rules) for name in names})


def collate_columns(
    columns: Mapping[str, torch.Tensor | npt.NDArray[Any] | Sequence[Any] | EncodedRows],
    *,
    ragged: Mapping[str, RaggedOption] | None = None,
    images: Collection[str] = (),
    staged: bool = False,
    optional: Mapping[str, Column] | None = None,
) -> Batch:
    """Collates whole columns to a batch, without work per sample where possible.

    Args:
        columns: Values of each column. A (N, *shape) tensor is used as it is. An array becomes a tensor, without a copy
            if it is writable and in native byte order. In a sequence of N values, tensors and arrays are stacked, or a
            list of tensors if their shapes differ; other values stay a list. A masked array is an optional column.
            `EncodedRows` are packed.
        ragged: Arrangement of columns whose shapes differ, as for `collate`.
        images: Columns of whole images, as for `collate`.
        staged: Whether ragged columns stay in one block for the device stage; False by default.
        optional: Columns of numbers and arrays whose values may be None, as for `collate`.

    Raises:
        CollateError: Columns differ in length, or a column's types or dtypes differ.
    """
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise CollateError("columns of a batch differ in length", got=lengths)
    rules = _Rules(ragged_columns(ragged), images, staged, optional or {})
    return _join({name: _collate_column(name, values, rules) for name, values in columns.items()})


@dataclass(frozen=True, slots=True)
class _Rules:
    """Arguments of `collate`."""

    ragged: Mapping[str, Ragged]
    images: Collection[str]
    staged: bool
    optional: Mapping[str, Column]


def _join(columns: Mapping[str, Any]) -> Batch:
    """Makes a batch of columns; a dict among them is a column with its companions."""
    data: dict[str, Any] = {}
    for name, value in columns.items():
        for each, part in (value if isinstance(value, _Arranged) else {name: value}).items():
            if each in data or (each != name and each in columns):
                raise CollateError(
                    f"the batch has the column {each!r} beside {name!r}, but the samples have it, too; rename it",
                    column=each,
                )
            data[each] = part
    return Batch(data)


class _Arranged(dict[str, Any]):
    """A column with its companions."""


def _collate_column(
    name: str, values: torch.Tensor | npt.NDArray[Any] | Sequence[Any] | EncodedRows, rules: _Rules
) -> Any:
    if isinstance(values, EncodedRows):
        return _Arranged(values.packed(name))
    if isinstance(values, np.ma.MaskedArray):
        filled = values.filled(default_value(values.dtype))
        return _Arranged({name: _from_array(name, filled), **_valid(name, ~null_rows(values))})
    if name in rules.optional and not isinstance(values, torch.Tensor | np.ndarray):
        return _collate_optional(name, values, rules)
    if name in rules.ragged:
        return _arrange_values(name, values, rules)
    if isinstance(values, torch.Tensor):
        return values
    if isinstance(values, np.ndarray):
        return _from_array(name, values)
    if any(issubclass(kind, torch.Tensor | np.ndarray) for kind in set(map(type, values))):
        return _collate_values(name, values, rules)
    return list(values)  # a JSON column stays a list, even in a batch where all of its values are numbers


def _collate_optional(name: str, values: Sequence[Any], rules: _Rules) -> Any:
    """Collates a column whose nulls are filled, beside a column that says which values are not null."""
    valid = np.array([value is not None for value in values], np.bool_)
    if not valid.all():
        given = next((value for value in values if value is not None), None)
        default = _default_like(rules.optional[name], given)
        values = [default if value is None else value for value in values]
    plain = replace(rules, optional={})
    made = _collate_values(name, values, plain)
    return _Arranged({**(made if isinstance(made, _Arranged) else {name: made}), **_valid(name, valid)})


def _default_like(column: Column, given: Any) -> Any:
    """Returns what stands for a null: of the kind of another value of the batch, which a transform may have changed."""
    if isinstance(given, torch.Tensor):
        fill = float("nan") if given.is_floating_point() else 0
        return given.new_empty([0] * given.dim()) if column.shape is None else torch.full_like(given, fill)
    if isinstance(given, bool | int | float):
        return type(given)(default_value(np.array(given).dtype))
    assert column.dtype is not None
    like = np.asarray(given) if isinstance(given, np.ndarray | np.generic) else None
    dtype = (column.dtype if like is None else like.dtype).newbyteorder("=")
    if column.shape is None:
        return np.empty([0] * (1 if like is None else max(1, like.ndim)), dtype)
    return np.full(column.shape if like is None else like.shape, default_value(dtype), dtype)[()]


def _valid(name: str, valid: npt.NDArray[np.bool_]) -> dict[str, torch.Tensor]:
    return {f"{name}_valid": torch.from_numpy(valid)}


def _collate_values(name: str, values: Sequence[Any], rules: _Rules) -> Any:
    if name in rules.optional:
        return _collate_optional(name, values, rules)
    if name in rules.ragged:
        return _arrange_values(name, values, rules)
    kinds = set(map(type, values))
    for kind in (torch.Tensor, np.ndarray):
        if not any(issubclass(each, kind) for each in kinds):
            continue
        _check_alike(name, values, kind, has_one_dtype=name not in rules.images)
        if len({(value.shape, value.dtype) for value in values}) > 1:
            return _arrange_values(name, values, rules)
        return _stack(list(values)) if kind is torch.Tensor else _from_array(name, np.stack(values))
    if all(issubclass(kind, np.bool_ | np.number) for kind in kinds):
        return _from_array(name, np.array(values))
    if kinds == {bool}:
        return torch.tensor(values, dtype=torch.bool)
    if kinds == {int}:
        return _integers(name, values)
    if kinds <= {int, float}:
        return torch.tensor(values, dtype=torch.float64)
    return list(values)


def _keep_ragged(name: str, values: list[torch.Tensor], rules: _Rules) -> Any:
    """Returns the column arranged, or in one block for the device stage."""
    how, is_image = rules.ragged.get(name), name in rules.images
    block = RaggedColumn.of(name, values, how, is_image) if rules.staged else None
    return block or _Arranged(arrange(name, values, how or "list", is_image=is_image))


def _arrange_values(name: str, values: Iterable[Any], rules: _Rules) -> Any:
    if rules.ragged.get(name) == "packed":
        values = map(_text_as_bytes, values)
    return _keep_ragged(name, [_as_tensor(name, value) for value in values], rules)


def _text_as_bytes(value: Any) -> Any:
    if isinstance(value, str | bytes):
        return np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    return value


def _as_tensor(name: str, value: Any) -> torch.Tensor:
    """Returns a value of a ragged column as a tensor that can be written to."""
    if isinstance(value, torch.Tensor):
        return value.as_subclass(torch.Tensor)
    if isinstance(value, np.ndarray):
        tensor = _from_array(name, value)
    else:
        try:
            tensor = torch.tensor(value) if isinstance(value, list | tuple) else None
        except (TypeError, ValueError, RuntimeError) as error:
            raise CollateError("a value of a ragged column is not a list of numbers", column=name) from error
    if not isinstance(tensor, torch.Tensor):
        raise CollateError(
            "a ragged column needs tensors, arrays or lists of numbers; leave the column out of ragged=",
            column=name, got=type(value).__name__,
        )  # fmt: skip
    return tensor


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Stacks tensors of one shape and dtype into contiguous memory."""
    first = tensors[0]
    if not all(map(is_in_numpy, tensors)):
        return torch.stack(tensors)
    # numpy copies on this thread alone. torch.stack splits each copy over all cores, which are busy decoding: 64
    # images of 375 x 500 took 30 ms with numpy, and 60 to 500 ms with torch.stack on two loaded cores.
    whole = empty((len(tensors), *first.shape), first.dtype)
    np.stack([tensor.numpy() for tensor in tensors], out=whole.numpy())
    return whole


def _check_alike(name: str, values: Sequence[Any], kind: type, *, has_one_dtype: bool) -> None:
    """Checks that values are tensors, or arrays, of one dtype and device."""
    strange = next((value for value in values if not isinstance(value, kind)), None)
    if strange is not None or any(value is None for value in values):
        got = sorted({type(value).__name__ for value in values})
        raise CollateError(f"samples have values of different types; {_ADVICE}", column=name, got=got)
    for what in ("dtype", "device") if has_one_dtype else ("device",):
        found = dict.fromkeys(str(getattr(value, what, "cpu")) for value in values)  # numpy has devices from 2.0 on
        if len(found) > 1:
            shown = [*list(found)[:8], *(["…"] if len(found) > 8 else [])]
            raise CollateError(f"samples differ in {what}; {_ADVICE}", column=name, got=shown)


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
