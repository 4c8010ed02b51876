"""Sampler of the native loader, for scripts and frameworks that call ``loader.sampler.set_epoch``."""

from __future__ import annotations

from typing import Any, Protocol

from torch.utils.data import SequentialSampler

__all__ = ["EpochSetter"]


class _Loader(Protocol):
    dataset: Any

    def set_epoch(self, epoch: int) -> None: ...


class EpochSetter(SequentialSampler):
    """Passes ``set_epoch`` on to a loader.

    Iterating yields the sample numbers in order, as for every `SequentialSampler`. Lightning replaces any
    other sampler when ``overfit_batches`` is set, which needs a torch loader. The loader itself never iterates over it.

    Args:
        loader: Loader whose epoch is set.
    """

    def __init__(self, loader: _Loader) -> None:
        super().__init__(loader.dataset)
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the loader's next iteration."""
        self._loader.set_epoch(epoch)
