"""Free-form JSON that travels in a manifest: made plain first, so that what is read equals what was given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from storage.errors import ConfigurationError

__all__ = ["plain_metadata"]


def plain_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns metadata as it will be read back: tuples become lists, keys become strings.

    Raises:
        ConfigurationError: Not JSON, or something in it would not survive: NaN, infinities, lone surrogates.
    """
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
        kept = msgspec.json.decode(msgspec.json.encode(plain))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"metadata must be JSON: {error}") from error
    if kept != plain:
        raise ConfigurationError("metadata has a number that JSON readers do not keep")
    return plain
