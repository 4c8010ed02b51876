"""Defines the user's options for the order of an epoch."""

from __future__ import annotations

from dataclasses import dataclass

from concurrent_loader.order.batching import ByLength
from concurrent_loader.order.last_batch import LastBatch
from concurrent_loader.order.packing import Packed
from concurrent_loader.order.sampler_batches import SamplerBatches
from concurrent_loader.order.sampling import Sampling
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.sizes import Size, parse_size

__all__ = [
    "DEFAULT_GROUPS",
    "DEFAULT_SHUFFLE_WINDOW",
    "MAX_AUTOMATIC_WINDOW",
    "LastBatch",
    "PlanOptions",
    "parse_window",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options that determine the order, together with the dataset and the epoch's number.

    Attributes:
        global_batch_size: Number of samples per batch over all ranks.
        seed: Seed of the order.
        groups: Number of parts that an epoch's shards are divided into.
        shuffle: Whether each epoch has a new order. Otherwise samples come in the order of writing.
        shuffle_window: Maximum distance that a sample may move, as a size or a number of samples.
        last_batch: Treatment of the last, partial batch: ``"drop"``, ``"short"`` or ``"pad"``.
        sampling: How often each sample comes in an epoch; None for once.
        batching: What makes batches of the samples; None for consecutive samples.

    Raises:
        ConfigurationError: ``sampling`` or ``batching`` has the wrong type.
    """

    global_batch_size: int
    seed: int
    groups: int
    shuffle: bool
    shuffle_window: Size
    last_batch: LastBatch
    sampling: Sampling | None = None
    batching: ByLength | Packed | SamplerBatches | None = None

    def __post_init__(self) -> None:
        if self.sampling is not None and not isinstance(self.sampling, Sampling):
            raise ConfigurationError(
                "sampling must be an object such as Weighted('weight') or Balanced('label')", got=repr(self.sampling)
            )
        if self.batching is not None and not isinstance(self.batching, ByLength | Packed | SamplerBatches):
            raise ConfigurationError(
                "batching must be a torch sampler, or an object such as ByLength('tokens') or Packed('tokens')",
                got=repr(self.batching),
            )


DEFAULT_GROUPS = 8  # one per GPU of a typical node
DEFAULT_SHUFFLE_WINDOW = "128MiB"
MAX_AUTOMATIC_WINDOW = (
    131_072  # samples: planning a block of this window takes some 40 ms, see docs/explanation/order.md
)


def parse_window(window: Size, mean_sample_bytes: float) -> int:
    """Returns a shuffle window as a number of samples.

    Args:
        window: Number of samples as an int; or a size such as ``"128MiB"``, which is divided by the mean sample size
            and limited to `MAX_AUTOMATIC_WINDOW` samples.
        mean_sample_bytes: Mean size of a sample in bytes.

    Raises:
        ConfigurationError: ``window`` is neither a size nor a positive number of samples.
    """
    if isinstance(window, str):
        num_bytes = parse_size(window, name="shuffle_window")
        return min(MAX_AUTOMATIC_WINDOW, max(1, int(num_bytes / max(mean_sample_bytes, 1.0))))
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ConfigurationError("shuffle_window must be a size or a positive number of samples", got=window)
    return window
