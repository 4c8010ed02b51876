"""Shuffle windows as users write them."""

from __future__ import annotations

from typing import Any

import pytest

from concurrent_loader.order.options import DEFAULT_SHUFFLE_WINDOW, MAX_AUTOMATIC_WINDOW, parse_window
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
