"""What every side delivers to the consumer: pictures, labels and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Minibatch"]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """A batch in the words of the comparison.

    Attributes:
        images: uint8 (N, 3, 128, 128), or the N files as they are where nothing is decoded.
        labels: int64 (N,).
        num_gets: Requests that it took, where the side counts them a batch.
        num_bytes: Body bytes of those requests.
    """

    images: Tensor | Sequence[bytes | memoryview]
    labels: Tensor
    num_gets: int = 0
    num_bytes: int = 0
