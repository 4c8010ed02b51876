"""Logs a loader's metrics through Lightning's loggers."""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from typing import Any

from concurrent_loader.metrics.instruments import flat
from concurrent_loader.metrics.snapshot import Snapshot, take_snapshot
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["lightning_callback"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback(*, every_n_steps: int = 50, name: str = "loader") -> Any:
    """Makes a callback that logs the metrics of the training loader with the Trainer's loggers.

    It logs on the training thread, with the Trainer's global step: every ``every_n_steps`` steps, and at the end of
    each epoch.

    Args:
        every_n_steps: Number of steps between two records; default 50.
        name: First part of the metrics' names; default ``"loader"``.

    Returns:
        ``Callback`` of ``lightning`` or ``pytorch_lightning``, whichever is installed.

    Raises:
        ConfigurationError: Neither is installed.

    Example:
        >>> from concurrent_loader import lightning_callback
        >>> trainer = Trainer(callbacks=[lightning_callback(every_n_steps=100)])  # doctest: +SKIP
    """
    installed = [each for each in _PACKAGES if importlib.util.find_spec(each.split(".")[0])]
    if not installed:
        raise ConfigurationError("lightning_callback needs Lightning: run `pip install lightning`")
    used = [each for each in installed if each in sys.modules]  # if both are installed
    base: Any = import_module([*used, *installed][0]).Callback

    class LoaderMetrics(base):  # type: ignore[misc]
        """Logs the metrics of the training loader."""

        def __init__(self) -> None:
            self._before: Snapshot | None = None

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            if trainer.global_step % every_n_steps == 0:
                self._log(trainer)

        def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
            self._log(trainer)

        def _log(self, trainer: Any) -> None:
            loader = trainer.train_dataloader
            if not hasattr(loader, "stats") or not trainer.loggers:
                return
            self._before = snapshot = take_snapshot(loader, name, before=self._before)
            values = {f"{name}/{metric}": value for metric, value in flat(snapshot).items()}
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)

    return LoaderMetrics()
