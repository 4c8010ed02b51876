"""The memory of one batch's pictures, in which decode threads write each at its place: nothing is copied afterwards.

In a worker process it is memory that the consumer can see. It is allocated by the first thread that asks, so neither
the event loop nor a thread waits for pages of a batch that is never made.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.broken import Broken
from concurrent_loader.shared_memory import SharedBlocks, empty

__all__ = ["BatchMemory", "Placed", "gathered"]


class BatchMemory:
    """Memory for a batch's pictures, column by column.

    Args:
        num_samples: Of the batch.
        blocks: Where it comes from in a worker process.

    Thread-safety: All methods.
    """

    def __init__(self, num_samples: int, blocks: SharedBlocks | None = None) -> None:
        self._num_samples = num_samples
        self.blocks = blocks
        self._lock = threading.Lock()
        self._pictures: dict[str, torch.Tensor] = {}

    def pictures(
        self,
        column: str,
        shape: tuple[int, int, int],
        dtype: torch.dtype = torch.uint8,
        *,
        channels_last: bool = False,
    ) -> torch.Tensor:
        """Returns a column's memory: (N, *shape), not initialised; the same to all who ask."""
        with self._lock:
            if column not in self._pictures:
                whole = _as_it_lies((self._num_samples, *shape), channels_last)
                num_bytes = torch.Size(whole).numel() * dtype.itemsize
                if self.blocks is None:
                    memory = torch.empty(whole, dtype=dtype)
                else:
                    memory = self.blocks.empty(whole, dtype, num_bytes)
                self._pictures[column] = _as_pictures(memory, channels_last)
            return self._pictures[column]

    def close(self) -> None:
        """Lets go of the descriptors that nobody has taken, and of those of a thread that is late. Idempotent."""
        if self.blocks is not None:
            self.blocks.close()


@dataclass(frozen=True, slots=True)
class Placed:
    """A slice's pictures, each written where it belongs.

    Attributes:
        pictures: (N, C, H, W), of the whole batch.
        positions: (n,) int64, where this slice's are.
        broken: Those that are not there, by their place in the slice.
    """

    pictures: torch.Tensor
    positions: npt.NDArray[np.int64]
    broken: dict[int, Broken] = field(default_factory=dict)

    def blank(self, place: int) -> None:
        """Makes a picture all zeros: black, unless it is normalised."""
        self.pictures[int(self.positions[place])] = 0


def gathered(parts: Sequence[Placed], back: npt.NDArray[np.intp]) -> torch.Tensor:
    """The batch's pictures: all of them as they lie, or some, copied.

    Args:
        parts: Of one batch.
        back: For each row of the result, which of the parts' pictures it shows, counted through.
    """
    pictures = parts[0].pictures
    rows = np.concatenate([part.positions for part in parts])[back]
    if np.array_equal(rows, np.arange(len(pictures))):
        return pictures
    channels_last = not pictures.is_contiguous()
    shape = _as_it_lies((len(rows), *pictures.shape[1:]), channels_last)
    some = _as_pictures(empty(shape, pictures.dtype), channels_last)
    for place, row in zip(some, rows.tolist(), strict=True):
        place.copy_(pictures[row])
    return some


def _as_it_lies(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    num, channels, height, width = shape
    return (num, height, width, channels) if channels_last else shape


def _as_pictures(memory: torch.Tensor, channels_last: bool) -> torch.Tensor:
    return memory.permute(0, 3, 1, 2) if channels_last else memory
