"""Writes metrics as scalars of TensorBoard."""

from __future__ import annotations

from typing import Any, Protocol

from concurrent_loader.metrics.instruments import flat
from concurrent_loader.metrics.snapshot import Snapshot

__all__ = ["TensorBoardMetrics"]


class _Writer(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


class TensorBoardMetrics:
    """Writes each metric of a snapshot as a scalar, over the number of batches delivered; see `observe`.

    Args:
        writer: ``torch.utils.tensorboard.SummaryWriter``, or an object with its ``add_scalar``.

    Example:
        >>> from concurrent_loader import TensorBoardMetrics
        >>> from torch.utils.tensorboard import SummaryWriter  # doctest: +SKIP
        >>> board = TensorBoardMetrics(SummaryWriter("runs/7"))  # doctest: +SKIP
    """

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer

    def observe(self, snapshot: Snapshot) -> None:
        """Writes a snapshot."""
        for name, value in flat(snapshot).items():
            self._writer.add_scalar(f"{snapshot.name}/{name}", value, snapshot.stats.num_batches)
