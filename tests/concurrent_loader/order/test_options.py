"""Shuffle windows as users write them."""

from __future__ import annotations

from typing import Any

import pytest

from concurrent_loader.order.options import DEFAULT_SHUFFLE_WINDOW, MAX_AUTOMATIC_WINDOW, default_groups, parse_window
from concurrent_loader.storage.errors import ConfigurationError


@pytest.mark.parametrize(
    ("window", "mean", "samples"),
    [
        (5, 1e9, 5),
        (10**7, 1.0, 10**7),
        ("64KiB", 1024, 64),
        ("1B", 1024, 1),
        (DEFAULT_SHUFFLE_WINDOW, 110_000, 1220),
        (DEFAULT_SHUFFLE_WINDOW, 10, MAX_AUTOMATIC_WINDOW),
        (DEFAULT_SHUFFLE_WINDOW, 0, MAX_AUTOMATIC_WINDOW),
    ],
)
def test_parse_window(window: Any, mean: float, samples: int) -> None:
    assert parse_window(window, mean) == samples


@pytest.mark.parametrize("window", [0, -1, True, 1.5, "many", None])
def test_parse_window_refuses(window: Any) -> None:
    with pytest.raises(ConfigurationError):
        parse_window(window, 1000)


@pytest.mark.parametrize(
    ("batch", "units", "groups"),
    [
        (1, 10**6, 8),
        (1023, 10**6, 8),
        (1024, 10**6, 16),
        (1000, 10**6, 8),  # 125 × 8
        (1536, 10**6, 24),
        (64 * 64, 10**6, 64),
        (512 * 64, 10**6, 512),
        (48 * 64, 10**6, 48),
        (64 * 64, 511, 32),  # with 64 groups, more than one shard in eight would cross a border
        (64 * 64, 40, 8),
        (64 * 64, 0, 8),
    ],
)
def test_the_default_number_of_groups_grows_with_the_batch(batch: int, units: int, groups: int) -> None:
    assert default_groups(batch, units) == groups
    assert groups == 8 or batch % groups == 0
