"""What the user says about the order of epochs: the arguments that a data set's plan is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from storage.sizes import Size

__all__ = ["LastBatch", "PlanOptions"]

LastBatch = Literal["drop", "short", "pad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """All that an epoch's order depends on, beside the data set and the epoch's number.

    Attributes:
        global_batch_size: Samples a batch, of all ranks together.
        seed: Of the order.
        groups: Into how many parts an epoch's shards are divided.
        shuffle: A new order each epoch; otherwise the order of writing.
        shuffle_window: How far a sample may move, as a size or a number of samples.
        last_batch: What becomes of the last batch where samples are missing.
    """

    global_batch_size: int
    seed: int
    groups: int
    shuffle: bool
    shuffle_window: Size
    last_batch: LastBatch
