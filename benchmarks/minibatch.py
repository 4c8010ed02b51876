"""What every side delivers to the consumer: images, labels and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Minibatch:
    """A batch in the words of the comparison."""

    # uint8 (N, 3, 128, 128), or the N files as they are where nothing is decoded
    images: Tensor | Sequence[bytes | memoryview]
    labels: Tensor  # int64 (N,)
    num_gets: int = 0  # requests that it took, where the side counts them a batch
    num_bytes: int = 0  # body bytes of those requests
