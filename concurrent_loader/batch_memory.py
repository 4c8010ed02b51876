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

    def pictures(self, column: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns a column's memory: (N, *shape) uint8, not initialised."""
        with self._lock:
            if column not in self._pictures:
                whole = (self._num_samples, *shape)
                num_bytes = torch.Size(whole).numel()
                if self.blocks is None:
                    self._pictures[column] = torch.empty(whole, dtype=torch.uint8)
                else:
                    self._pictures[column] = self.blocks.empty(whole, torch.uint8, num_bytes)
            return self._pictures[column]

    def close(self) -> None:
        """Lets go of the descriptors that nobody has taken, and of those of a thread that is late. Idempotent."""
        if self.blocks is not None:
            self.blocks.close()


@dataclass(frozen=True, slots=True)
class Placed:
    """A slice's pictures, each written where it belongs.

    Attributes:
        pictures: (N, C, H, W) uint8, of the whole batch.
        positions: (n,) int64, where this slice's are.
        broken: Those that are not there, by their place in the slice.
    """

    pictures: torch.Tensor
    positions: npt.NDArray[np.int64]
    broken: dict[int, Broken] = field(default_factory=dict)

    def blank(self, place: int) -> None:
        """Makes a picture black."""
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
    some = empty((len(rows), *pictures.shape[1:]), pictures.dtype)
    np.take(pictures.numpy(), rows, axis=0, out=some.numpy())
    return some
