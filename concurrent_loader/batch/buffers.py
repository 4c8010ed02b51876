"""Allocates one buffer per image column of a batch. Decode threads write their images into it, so nothing is copied.

In a worker process the buffer lies in memory that the consumer can map. The first decode thread that needs a buffer
allocates it: the event loop never waits for memory pages, and a batch that is never made takes none.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.batch.decode_failures import FailedImage
from concurrent_loader.batch.shared_memory import SharedBlocks, empty

__all__ = ["BatchBuffers", "BatchSlotWrites", "gather_images"]


class BatchBuffers:
    """Image buffers of a batch, one per column.

    Args:
        num_samples: Number of samples in the batch.
        blocks: Shared memory for the buffers, in a worker process. None, the default, uses memory of this process.

    Thread-safety: All methods may be called from any thread.
    """

    def __init__(self, num_samples: int, blocks: SharedBlocks | None = None) -> None:
        self._num_samples = num_samples
        self.blocks = blocks
        self._lock = threading.Lock()
        self._images: dict[str, torch.Tensor] = {}

    def images(
        self,
        column: str,
        shape: tuple[int, int, int],
        dtype: torch.dtype = torch.uint8,
        *,
        channels_last: bool = False,
    ) -> torch.Tensor:
        """Returns the buffer of a column, (N, *shape), not initialised. Every call returns the same buffer."""
        with self._lock:
            if column not in self._images:
                whole = _memory_shape((self._num_samples, *shape), channels_last)
                num_bytes = torch.Size(whole).numel() * dtype.itemsize
                if self.blocks is None:
                    memory = torch.empty(whole, dtype=dtype)
                else:
                    memory = self.blocks.empty(whole, dtype, num_bytes)
                self._images[column] = _as_images(memory, channels_last)
            return self._images[column]

    def close(self) -> None:
        """Closes all file descriptors that were not taken, those of late threads included. Idempotent."""
        if self.blocks is not None:
            self.blocks.close()


@dataclass(frozen=True, slots=True)
class BatchSlotWrites:
    """The images of a slice, which a thread has written into the batch's buffer.

    Attributes:
        images: (N, C, H, W), buffer of the whole batch.
        positions: (n,) int64, rows of the slice's images in the buffer.
        failures: Failed images, by their place in the slice.
    """

    images: torch.Tensor
    positions: npt.NDArray[np.int64]
    failures: dict[int, FailedImage] = field(default_factory=dict)

    def blank(self, place: int) -> None:
        """Sets an image to zeros: black, unless images are normalized."""
        self.images[int(self.positions[place])] = 0


def gather_images(parts: Sequence[BatchSlotWrites], back: npt.NDArray[np.intp]) -> torch.Tensor:
    """Returns the images of a batch: the buffer itself, or a copy of some of its rows.

    Args:
        parts: All slices of one batch.
        back: Position in the slices strung together, for each row of the result.
    """
    images = parts[0].images
    rows = np.concatenate([part.positions for part in parts])[back]
    if np.array_equal(rows, np.arange(len(images))):
        return images
    channels_last = not images.is_contiguous()
    shape = _memory_shape((len(rows), *images.shape[1:]), channels_last)
    some = _as_images(empty(shape, images.dtype), channels_last)
    for place, row in zip(some, rows.tolist(), strict=True):
        place.copy_(images[row])
    return some


def _memory_shape(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    num, channels, height, width = shape
    return (num, height, width, channels) if channels_last else shape


def _as_images(memory: torch.Tensor, channels_last: bool) -> torch.Tensor:
    return memory.permute(0, 3, 1, 2) if channels_last else memory
