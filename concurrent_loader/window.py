"""How far samples move when they are shuffled, as a person writes it: a size or a number of samples."""

from __future__ import annotations

from storage.errors import ConfigurationError
from storage.sizes import Size, parse_size

__all__ = ["DEFAULT_SHUFFLE_WINDOW", "MAX_AUTOMATIC_WINDOW", "parse_window"]

DEFAULT_SHUFFLE_WINDOW = "128MiB"
MAX_AUTOMATIC_WINDOW = 131_072  # samples: planning a block of this window takes some 40 ms, see docs/order.md


def parse_window(window: Size, mean_sample_bytes: float) -> int:
    """Returns a shuffle window as a number of samples.

    Args:
        window: A number of samples as an int, taken as it is; or a size such as ``"128MiB"``, divided by the mean
            sample and capped at `MAX_AUTOMATIC_WINDOW` samples.
        mean_sample_bytes: Size of the data set over its number of samples.

    Raises:
        ConfigurationError: Neither of these, or no sample at all.
    """
    if isinstance(window, str):
        num_bytes = parse_size(window, name="shuffle_window")
        return min(MAX_AUTOMATIC_WINDOW, max(1, int(num_bytes / max(mean_sample_bytes, 1.0))))
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ConfigurationError("shuffle_window must be a size or a positive number of samples", got=window)
    return window
