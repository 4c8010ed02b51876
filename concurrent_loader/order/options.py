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
    "default_groups",
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


DEFAULT_GROUPS = 8  # at least: one per GPU of a typical node
_SAMPLES_PER_GROUP = 64  # of a batch; fewer would make more ranks independent, and small batches need more shards
_UNITS_PER_GROUP = 8  # a unit across the border of two groups is fetched twice: one in eight at most
DEFAULT_SHUFFLE_WINDOW = "128MiB"
MAX_AUTOMATIC_WINDOW = (
    131_072  # samples: planning a block of this window takes some 40 ms, see docs/explanation/order.md
)


def default_groups(global_batch_size: int, num_units: int) -> int:
    """Returns the number of groups of a shuffled epoch if the user gives none.

    The number grows with the global batch, not with the ranks, so that the order is the same for any number of ranks.
    Readers that take 64 samples of each batch, or a multiple, share no group: nodes of eight GPUs, eight samples each.

    Args:
        global_batch_size: Number of samples per batch over all ranks.
        num_units: Number of shards of the dataset.

    Example:
        >>> from concurrent_loader.order.options import default_groups
        >>> default_groups(256, 16_858), default_groups(64 * 64, 16_858), default_groups(64 * 64, 300)
        (8, 64, 32)
    """
    limit = min(global_batch_size // _SAMPLES_PER_GROUP, num_units // _UNITS_PER_GROUP) // DEFAULT_GROUPS
    shares, rest = divmod(global_batch_size, DEFAULT_GROUPS)
    if rest or limit <= 1:
        return DEFAULT_GROUPS
    return DEFAULT_GROUPS * next(number for number in range(limit, 0, -1) if shares % number == 0)


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
