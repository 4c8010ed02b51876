"""Arranges the values of a column whose shapes differ, for `concurrent_loader.batch.collate` and the device stage.

A value is a sequence along its first dimension, (L, …). A whole image, (C, H, W), is padded in height and width, and
packed as a sequence of its pixels, (H·W, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.batch.shared_memory import empty
from concurrent_loader.errors import CollateError
from concurrent_loader.storage.errors import ConfigurationError

__all__ = [
    "Pad",
    "Ragged",
    "RaggedColumn",
    "RaggedOption",
    "arrange",
    "companions",
    "is_in_numpy",
    "packed_offsets",
    "ragged_columns",
]

_IN_NUMPY = frozenset(torch.from_numpy(np.empty(0, dtype)).dtype for dtype in "?bhilBHILefd")
_FORM = "ragged={column: 'list', 'pad', Pad(…), 'nested' or 'packed'}"
_MAX_CU_SEQLEN = 2**31 - 1


@dataclass(frozen=True)
class Pad:
    """Pads the values of a ragged column to one shape: ``ragged={"tokens": Pad(multiple=64)}``.

    The batch gets the padded column, (N, L, …), and a column of the real lengths, ``<column>_lengths``, (N,) int64. For
    whole images the columns are (N, C, H, W) and ``<column>_sizes``, (N, 2) int64: height and width.

    Args:
        value: Value of the padding. Default 0.
        multiple: Number of which a padded length is a multiple; of images, of height and width. Default 1. A tuple has
            a multiple for each dimension of a value. All dimensions may then differ, and ``<column>_sizes`` is (N, D).
        mask: Whether the batch also gets ``<column>_mask``, (N, L) or (N, H, W) bool, True for real values. Default
            False.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> import torch
        >>> from concurrent_loader import Pad, collate
        >>> samples = [{"tokens": torch.tensor([7, 8, 9])}, {"tokens": torch.tensor([5])}]
        >>> batch = collate(samples, ragged={"tokens": Pad(value=-1, multiple=4)})
        >>> batch["tokens"].tolist(), batch["tokens_lengths"].tolist()
        ([[7, 8, 9, -1], [5, -1, -1, -1]], [3, 1])
    """

    value: float = 0
    multiple: int | tuple[int, ...] = 1
    mask: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.value, int | float):
            raise ConfigurationError("the value of padding must be a number", got=self.value)
        multiples = self.multiple if isinstance(self.multiple, tuple) else (self.multiple,)
        if not multiples or any(isinstance(each, bool) or not isinstance(each, int) or each < 1 for each in multiples):
            raise ConfigurationError("multiple must be a positive integer, or a tuple of them", got=self.multiple)


Ragged = Literal["list", "nested", "packed"] | Pad
RaggedOption = Literal["list", "pad", "nested", "packed"] | Pad


def ragged_columns(options: Mapping[str, RaggedOption] | None) -> dict[str, Ragged]:
    """Checks the ``ragged`` argument of a loader, and returns it with ``"pad"`` written as `Pad()`.

    Raises:
        ConfigurationError: The argument has another form; the error shows the right one.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigurationError("ragged must map columns to arrangements", expected=_FORM, got=options)
    columns: dict[str, Ragged] = {}
    for name, how in options.items():
        if isinstance(how, Pad):
            columns[name] = how
        elif how == "pad":
            columns[name] = Pad()
        elif how in ("list", "nested", "packed"):
            columns[name] = how
        else:
            raise ConfigurationError(
                "ragged has an invalid value for a column", column=str(name), expected=_FORM, got=how
            )
    return columns


def companions(name: str, how: Ragged) -> tuple[str, ...]:
    """Returns the names of the columns that an arrangement may add to a batch."""
    if isinstance(how, Pad):
        return f"{name}_lengths", f"{name}_sizes", f"{name}_mask"
    return {"packed": (f"{name}_seq_lens", f"{name}_cu_seqlens", f"{name}_sizes"), "nested": (f"{name}_sizes",)}.get(
        how, ()
    )


def is_in_numpy(tensor: torch.Tensor) -> bool:
    """Returns whether numpy can copy a tensor: dense numbers on the CPU, without gradients, of a dtype that it has."""
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.dtype in _IN_NUMPY
    return plain and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())


def _is_movable(tensor: torch.Tensor) -> bool:
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    return plain and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())


def arrange(name: str, values: Sequence[torch.Tensor], how: Ragged, *, is_image: bool = False) -> dict[str, Any]:
    """Arranges the values of a column.

    Args:
        name: Name of the column.
        values: One tensor per sample, at least one, on one device.
        how: Arrangement.
        is_image: Whether values with three dimensions are images, (C, H, W).

    Returns:
        The column and its companions, in order:

        - ``"list"``: the tensors.
        - `Pad`: (N, *padded), and the companions that `Pad` describes.
        - ``"packed"``: (total, …), ``<name>_seq_lens``, (N,) int64, and ``<name>_cu_seqlens``, (N + 1,) int32, from 0
          on. Images also have ``<name>_sizes``, (N, 2) int64.
        - ``"nested"``: a nested tensor (N, L, …) with ``layout=torch.jagged``. Images also have ``<name>_sizes``.

    Raises:
        CollateError: Values differ in dtype, or in dimensions that cannot be ragged.
    """
    if how == "list":
        return {name: list(values)}
    is_image = is_image and all(value.dim() == 3 for value in values)
    alike = _with_like_empties(name, values)
    if isinstance(how, Pad):
        return _pad(name, alike, how, is_image)
    _check_sizes(name, alike, (1, 2) if is_image else (0,))
    sizes = {f"{name}_sizes": _sizes(alike, (1, 2))} if is_image else {}
    rows = [value.flatten(1).T for value in alike] if is_image else alike
    lengths = [len(row) for row in rows]
    values_of_all, device = _concatenate(rows), alike[0].device
    if how == "nested":
        offsets = torch.from_numpy(np.cumsum([0, *lengths])).to(device, non_blocking=True)
        nested = torch.nested.nested_tensor_from_jagged(
            values_of_all, offsets, min_seqlen=min(lengths), max_seqlen=max(lengths)
        )
        return {name: nested, **sizes}
    beside = packed_offsets(name, np.array(lengths, np.int64))
    return {name: values_of_all, **{key: each.to(device, non_blocking=True) for key, each in beside.items()}, **sizes}


def packed_offsets(name: str, lengths: npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
    """Returns the columns beside a packed one, given the length of each value.

    Raises:
        CollateError: The offsets do not fit into int32.
    """
    ends = np.cumsum(np.concatenate([[0], lengths]))
    if ends[-1] > _MAX_CU_SEQLEN:
        raise CollateError(
            "a packed column is too long for int32 offsets; pass a smaller batch_size", column=name,
            expected=_MAX_CU_SEQLEN, got=int(ends[-1]),
        )  # fmt: skip
    return {
        f"{name}_seq_lens": torch.from_numpy(lengths),
        f"{name}_cu_seqlens": torch.from_numpy(ends.astype(np.int32)),
    }


@dataclass(frozen=True, slots=True)
class RaggedColumn:
    """Stores a ragged column before it is on the device: the numbers of all values in one block.

    Attributes:
        name: Name of the column.
        how: Arrangement on the device. None stacks values of one shape, and keeps a list of others.
        is_image: Whether the values are images, (C, H, W).
        block: Numbers of all values, (n,).
        shapes: Shape of each value.
    """

    name: str
    how: Ragged | None
    is_image: bool
    block: torch.Tensor
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, name: str, values: Sequence[torch.Tensor], how: Ragged | None, is_image: bool) -> RaggedColumn | None:
        """Makes a column of values; None if they are not numbers of one dtype on the CPU, without gradients.

        Raises:
            CollateError: The values do not have what their arrangement needs.
        """
        if how is not None and how != "list":
            values = _with_like_empties(name, values)
        if len({value.dtype for value in values}) > 1 or not all(map(_is_movable, values)):
            return None
        block = _concatenate([value.reshape(-1) for value in values])
        return cls(name, how, is_image, block, tuple(tuple(value.shape) for value in values))

    def arranged(self, block: torch.Tensor, rows: Sequence[int] | None) -> dict[str, Any]:
        """Returns the column and its companions.

        Args:
            block: ``block`` on the device.
            rows: Samples to deliver, in order; None for all of them.
        """
        parts = torch.split(block, [math.prod(shape) for shape in self.shapes])
        values = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        values = values if rows is None else [values[row] for row in rows]
        if self.how is not None:
            return arrange(self.name, values, self.how, is_image=self.is_image)
        return {self.name: torch.stack(values) if len({value.shape for value in values}) == 1 else values}


def _pad(name: str, values: list[torch.Tensor], how: Pad, is_image: bool) -> dict[str, Any]:
    first = values[0]
    if isinstance(how.multiple, tuple):
        if any(value.dim() != len(how.multiple) for value in values):
            shapes = sorted({tuple(value.shape) for value in values})[:8]
            raise CollateError(
                "Pad.multiple must have one number for each dimension of a value", column=name, expected=how.multiple,
                got=shapes,
            )  # fmt: skip
        dims, multiples = tuple(range(first.dim())), how.multiple
    else:
        dims = (1, 2) if is_image else (0,)
        multiples = (how.multiple,) * len(dims)
    _check_sizes(name, values, dims)
    shape = list(first.shape)
    for dim, multiple in zip(dims, multiples, strict=True):
        shape[dim] = -(-max(value.shape[dim] for value in values) // multiple) * multiple
    whole = _filled(name, (len(values), *shape), how.value, values)
    for row, value in enumerate(values):
        _copy(whole[row][tuple(slice(size) for size in value.shape)], value)
    sizes = _sizes(values, dims)
    by_length = dims == (0,) and not isinstance(how.multiple, tuple)
    columns = {name: whole, f"{name}_lengths" if by_length else f"{name}_sizes": sizes[:, 0] if by_length else sizes}
    if how.mask:
        columns[f"{name}_mask"] = _mask(sizes, [shape[dim] for dim in dims])
    return columns


def _filled(name: str, shape: tuple[int, ...], value: float, like: Sequence[torch.Tensor]) -> torch.Tensor:
    dtype = like[0].dtype
    is_number = isinstance(value, int) or value.is_integer()
    if not dtype.is_floating_point and not dtype.is_complex:
        low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        if not is_number or not low <= value <= high:
            raise CollateError(
                "the value of padding does not fit into the column's dtype; pass another Pad(value=…)", column=name,
                expected=dtype, got=value,
            )  # fmt: skip
    if all(map(is_in_numpy, like)):
        whole = empty(shape, dtype)
        whole.numpy()[...] = value
        return whole
    return torch.full(shape, value, dtype=dtype, device=like[0].device)


def _mask(sizes: torch.Tensor, padded: Sequence[int]) -> torch.Tensor:
    """Returns (N, *padded) bool, True within the size of each value."""
    mask = torch.ones((len(sizes), *padded), dtype=torch.bool, device=sizes.device)
    for axis, length in enumerate(padded):
        inside = torch.arange(length, device=sizes.device) < sizes[:, axis : axis + 1]
        mask &= inside.view(len(sizes), *(length if each == axis else 1 for each in range(len(padded))))
    return mask


def _sizes(values: Sequence[torch.Tensor], dims: Sequence[int]) -> torch.Tensor:
    sizes = torch.tensor([[value.shape[dim] for dim in dims] for value in values], dtype=torch.int64)
    return sizes.to(values[0].device, non_blocking=True)


def _with_like_empties(name: str, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns values of one dtype. A value without numbers, such as the boxes of an empty scene, gets shape and dtype.

    Raises:
        CollateError: Values differ in dtype, or a value is a single number.
    """
    like = next((value for value in values if value.numel()), max(values, key=torch.Tensor.dim))
    if any(not value.dim() for value in values):
        raise CollateError("a ragged column needs arrays with at least one dimension", column=name, got="a number")
    alike = [
        value if value.numel() or value.shape[1:] == like.shape[1:] else like.new_empty((0, *like.shape[1:]))
        for value in values
    ]
    alike = [value if value.numel() else value.to(like.dtype) for value in alike]
    if len({value.dtype for value in alike}) > 1:
        raise CollateError(
            "values of a ragged column differ in dtype; convert them in a transform", column=name,
            got=sorted({str(value.dtype) for value in alike}),
        )  # fmt: skip
    return alike


def _check_sizes(name: str, values: Sequence[torch.Tensor], ragged_dims: Sequence[int]) -> None:
    """Checks that values differ in ragged dimensions only."""
    kinds = {
        (value.dim(), *(size for dim, size in enumerate(value.shape) if dim not in ragged_dims)) for value in values
    }
    if len(kinds) > 1:
        raise CollateError(
            f"values differ in a dimension that this arrangement does not pad or pack; it accepts other sizes in "
            f"dimension {' and '.join(map(str, ragged_dims))} only. Pass Pad(multiple=(1, …)) with a number for each "
            "dimension to pad all of them, or 'list'",
            column=name,
            got=sorted({tuple(value.shape) for value in values})[:8],
        )


def _concatenate(values: Sequence[torch.Tensor]) -> torch.Tensor:
    if not all(map(is_in_numpy, values)):
        return torch.cat(list(values))
    whole = empty((sum(map(len, values)), *values[0].shape[1:]), values[0].dtype)
    # On this thread alone, as in `concurrent_loader.batch.collate`.
    np.concatenate([value.numpy() for value in values], out=whole.numpy())
    return whole


def _copy(place: torch.Tensor, value: torch.Tensor) -> None:
    if is_in_numpy(place) and is_in_numpy(value):
        place.numpy()[...] = value.numpy()
    else:
        place.copy_(value)
