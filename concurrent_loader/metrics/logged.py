"""Passes metrics as a flat dict to a function: Weights & Biases, MLflow, Aim, Neptune, a logger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from concurrent_loader.metrics.instruments import flat
from concurrent_loader.metrics.snapshot import Snapshot

__all__ = ["LoggedMetrics"]


class LoggedMetrics:
    """Calls a function with a dict of numbers for each snapshot; see `observe`.

    Names are those of the metrics behind the loader's name: ``"train/samples"``, ``"train/time.wait_store"``.

    Args:
        log: Function of one dict, such as ``wandb.log`` or ``mlflow.log_metrics``, called on the observing thread.

    Example:
        >>> from concurrent_loader import LoggedMetrics
        >>> from concurrent_loader.metrics.snapshot import Snapshot
        >>> LoggedMetrics(lambda row: print(row["train/batches"])).observe(Snapshot(name="train"))
        0.0
    """

    def __init__(self, log: Callable[[dict[str, Any]], object]) -> None:
        self._log = log

    def observe(self, snapshot: Snapshot) -> None:
        """Logs a snapshot."""
        self._log({f"{snapshot.name}/{name}": value for name, value in flat(snapshot).items()})
