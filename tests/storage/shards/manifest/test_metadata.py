from __future__ import annotations

from typing import Any

import pytest

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.shards.manifest.manifest import plain_metadata


def test_what_is_returned_is_what_will_be_read() -> None:
    assert plain_metadata({"a": (1, 2), "b": {3: None}, "c": "é", "d": 1.5}) == {
        "a": [1, 2],
        "b": {"3": None},
        "c": "é",
        "d": 1.5,
    }
    assert plain_metadata(None) == {}


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), b"bytes", object(), {1, 2}, "\ud800", {"x": [float("-inf")]}]
)
def test_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="metadata"):
        plain_metadata({"key": value})


def test_endless_nesting_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ConfigurationError):
        plain_metadata({"key": loop})
