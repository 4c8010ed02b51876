"""Defines `Batch`: a dict of columns that knows its place in the order of samples."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Self

import torch

from concurrent_loader.errors import CollateError
from concurrent_loader.storage.html_table import html_table
from concurrent_loader.storage.public_names import PublicNames
from concurrent_loader.storage.sizes import format_count

__all__ = ["Batch", "as_tuple"]

_MAX_IDS = 10  # shown in a notebook


class Batch(PublicNames, dict[str, Any]):
    """A dict of a batch's columns, which also knows its place in the order of samples.

    Columns are tensors with one row per sample, or lists with one entry per sample.

    Attributes:
        epoch: Epoch of the batch, from 0.
        step: Number of the batch in its epoch, from 0.
        sample_ids: (N,) int64 on the CPU, the samples' numbers in the dataset; empty if unknown.
        num_padded: Number of padding samples at the end of the batch.
        sources: (N,) int64 on the CPU, the dataset of a `Mixture` that each sample comes from; empty without a mixture.

    Example:
        >>> from concurrent_loader import ConcurrentDataLoader, ShardDataset
        >>> with ShardDataset("photos") as dataset:
        ...     batch = next(iter(ConcurrentDataLoader(dataset, batch_size=4)))
        >>> batch["label"].shape, batch.step, batch.sample_ids.tolist()
        (torch.Size([4]), 0, [0, 1, 2, 3])
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

    @property
    def num_samples(self) -> int:
        """Number of samples without padding; 0 if ``sample_ids`` are unknown."""
        return len(self.sample_ids) - self.num_padded

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Returns the batch with its tensors, also tensors in lists, on a device. ``sample_ids`` stay on the CPU.

        Args:
            device: Target device.
            non_blocking: Whether copies from page-locked memory are asynchronous, False by default.
        """
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Returns the batch with its CPU tensors in page-locked memory, so that copies to a device are asynchronous."""
        return self._map(lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)

    def _map(self, change: Any) -> Self:
        def changed(value: Any) -> Any:
            if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
                return [changed(each) for each in value]
            return change(value) if isinstance(value, torch.Tensor) else value

        return self.with_columns({name: changed(value) for name, value in self.items()})

    def with_columns(self, data: Mapping[str, Any]) -> Self:
        """Returns a batch with other columns and the same place in the order."""
        return type(self)(
            data,
            epoch=self.epoch,
            step=self.step,
            sample_ids=self.sample_ids,
            num_padded=self.num_padded,
            sources=self.sources,
        )

    def __iter__(self) -> Iterator[str]:
        """Iterates over the column names. Raises `TypeError` for ``x, y = batch``, which would unpack names."""
        if _is_unpacking(sys._getframe(1)):
            names = tuple(self.keys())
            raise TypeError(
                f"a batch is a mapping and cannot be unpacked into its columns {names}: pass as_tuple={names[:2]} to "
                "the loader, or write `for batch in loader: x, y = batch[name], batch[other]`"
            )
        return super().__iter__()

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {_describe(value)}" for name, value in self.items())
        return f"Batch(epoch={self.epoch}, step={self.step}, {{{columns}}})"

    def _repr_html_(self) -> str:
        """Shows a batch in a notebook: one row per column."""
        ids = self.sample_ids.tolist()
        shown = ", ".join(map(str, ids[:_MAX_IDS])) + (", …" if len(ids) > _MAX_IDS else "")
        padded = f", {self.num_padded} of them padding" if self.num_padded else ""
        note = f"{format_count(len(ids), 'sample')}{padded}: {shown}" if ids else ""
        rows = [(str(name), _describe(value)) for name, value in self.items()]
        return html_table(f"Batch of epoch {self.epoch}, step {self.step}", rows, note=note)


def as_tuple(batch: Any, names: Sequence[str] | None) -> Any:
    """Returns columns of a batch as a tuple; the batch itself if there are no names.

    Raises:
        CollateError: The batch is not a mapping, or lacks a column.
    """
    if names is None:
        return batch
    if not isinstance(batch, Mapping):
        raise CollateError(
            "as_tuple needs a batch with named columns; return a dict from collate_fn or batch_transform, or leave it "
            "out", got=type(batch).__name__,
        )  # fmt: skip
    missing = next((name for name in names if name not in batch), None)
    if missing is not None:
        raise CollateError(
            "as_tuple names a column that the batch does not have", column=missing, expected=list(batch.keys())
        )
    return tuple(batch[name] for name in names)


_UNPACKING = frozenset(dis.opmap[name] for name in ("UNPACK_SEQUENCE", "UNPACK_EX"))


def _is_unpacking(frame: FrameType) -> bool:
    """Returns whether a frame's current instruction unpacks a sequence. Works on CPython's bytecode only."""
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] in _UNPACKING


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}"
    return f"list of {len(value)}" if isinstance(value, list) else type(value).__name__
