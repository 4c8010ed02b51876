"""Statistics of a column's values, computed while shards are written and stored in the manifest. No I/O.

FIXED numbers: ``min`` and ``max`` over the finite values (None without any); floats also ``num_nan`` and
``num_infinite``; bools ``num_true`` and ``num_values``. PAYLOAD columns: ``total_bytes``, ``min_bytes``, ``max_bytes``.
Optional columns: also ``num_null``; nulls count nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Facts", "Statistics", "fixed_facts", "merge_statistics", "payload_facts"]

Facts = dict[str, int | float | None]
Statistics = dict[str, Facts]


def fixed_facts(values: npt.NDArray[Any]) -> Facts:
    """Returns the statistics of a FIXED column, given its values (n, ...), of which masked ones do not count."""
    if isinstance(values, np.ma.MaskedArray):
        values = values.compressed()
    if values.dtype == np.bool_:
        return {"num_true": int(np.count_nonzero(values)), "num_values": int(values.size)}
    if np.issubdtype(values.dtype, np.integer):
        return _extremes(values)
    finite = values[np.isfinite(values)]
    return {
        **_extremes(finite),
        "num_infinite": int(np.count_nonzero(np.isinf(values))),
        "num_nan": int(np.count_nonzero(np.isnan(values))),
    }


def payload_facts(num_bytes: npt.NDArray[Any]) -> Facts:
    """Returns the statistics of a PAYLOAD column, given the lengths (n,) of its values."""
    extremes = _extremes(num_bytes)
    return {
        "max_bytes": extremes["max"],
        "min_bytes": extremes["min"],
        "total_bytes": int(num_bytes.sum(dtype=np.uint64)),
    }


def merge_statistics(first: Mapping[str, Facts], second: Mapping[str, Facts]) -> Statistics:
    """Combines the statistics of two runs of samples."""
    names = [*first, *(name for name in second if name not in first)]
    return {name: _merge(first.get(name, {}), second.get(name, {})) for name in names}


def _extremes(values: npt.NDArray[Any]) -> Facts:
    if values.size == 0:
        return {"max": None, "min": None}
    return {"max": values.max().item(), "min": values.min().item()}


def _merge(first: Facts, second: Facts) -> Facts:
    return {name: _combine(name, first.get(name), second.get(name)) for name in sorted(first.keys() | second.keys())}


def _combine(name: str, first: float | None, second: float | None) -> int | float | None:
    if first is None or second is None:
        return second if first is None else first
    if name.startswith("max"):
        return max(first, second)
    return min(first, second) if name.startswith("min") else first + second
