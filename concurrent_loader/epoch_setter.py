"""The sampler that the native loader shows to scripts and frameworks written for torch's loader."""

from __future__ import annotations

from typing import Any, Protocol

from torch.utils.data import SequentialSampler

__all__ = ["EpochSetter"]


class _Loader(Protocol):
    dataset: Any

    def set_epoch(self, epoch: int) -> None: ...


class EpochSetter(SequentialSampler):
    """Passes ``set_epoch`` on to a loader.

    Iterating gives the sample numbers of the dataset in order, as for every `SequentialSampler`. Lightning replaces any
    other sampler when ``overfit_batches`` is set, which needs a torch loader. The loader itself never iterates over it.

    Args:
        loader: Loader whose epoch is set.
    """

    def __init__(self, loader: _Loader) -> None:
        super().__init__(loader.dataset)
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Makes the loader's next iteration one of this epoch."""
        self._loader.set_epoch(epoch)
