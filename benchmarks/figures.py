"""What repeated epochs amount to: medians with their spread, ratios within a run, and targets to hold them to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.measurement import Epoch


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the extremes around it."""

    median: float  # of all values
    low: float  # the smallest
    high: float  # the largest

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)} … {_short(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    """Sums up repeated measurements of one thing."""
    if not values:
        raise ValueError("nothing was measured")
    return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should reach."""

    key: str  # the figure's key
    bound: float  # the value
    at_least: bool  # whether more is better

    def met(self, value: float) -> bool:
        """Whether a value reaches the bound."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {_short(self.bound)}"


_BYTES_TARGETS = (Target("first_batch_s", 1.0, at_least=False), Target("bytes_ratio", 1.01, at_least=False))
TRAINING_TARGETS = (
    Target("cold_ratio", 0.95, at_least=True),
    Target("warm_ratio", 0.99, at_least=True),
    *_BYTES_TARGETS,
)
RAW_TARGETS = (
    Target("cold_img_s", 8000, at_least=True),
    *_BYTES_TARGETS,
    Target("rss_added_mb", 400, at_least=False),
)


def section(local: Sequence[Epoch], cold: Sequence[Epoch], warm: Sequence[Epoch]) -> dict[str, object]:
    """The figures of one step, for JSON: medians under their keys, the extremes under ``spread``.

    A ratio is the median over the rounds of (remote ÷ local in the same round), so that a machine that slows down or
    speeds up during the run changes it little.
    """
    spreads = {
        "local_img_s": spread([epoch.samples_per_s for epoch in local]),
        "cold_img_s": spread([epoch.samples_per_s for epoch in cold]),
        "warm_img_s": spread([epoch.samples_per_s for epoch in warm]),
        "cold_ratio": _ratio(cold, local),
        "warm_ratio": _ratio(warm, local),
        "build_s": spread([epoch.build_s for epoch in cold]),
        "first_batch_s": spread([epoch.first_batch_s for epoch in cold]),
        "first_batch_local_s": spread([epoch.first_batch_s for epoch in local]),
        "first_batch_warm_s": spread([epoch.first_batch_s for epoch in warm]),
        "waiting_share": spread([epoch.waiting_share for epoch in cold]),
        "waiting_share_local": spread([epoch.waiting_share for epoch in local]),
        "gets": spread([epoch.num_gets for epoch in cold]),
        "gets_warm": spread([epoch.num_gets for epoch in warm]),
        "bytes_ratio": spread([epoch.num_bytes / epoch.dataset_bytes for epoch in cold]),
        "cpu_s_per_1000": spread([epoch.cpu_s_per_1000 for epoch in cold]),
        "cpu_s_per_1000_local": spread([epoch.cpu_s_per_1000 for epoch in local]),
        "cpu_s_per_1000_warm": spread([epoch.cpu_s_per_1000 for epoch in warm]),
        "peak_rss_mb": spread([epoch.peak_rss_mb for epoch in cold]),
        "peak_rss_mb_local": spread([epoch.peak_rss_mb for epoch in local]),
        "rss_added_mb": spread([epoch.rss_added_mb for epoch in cold]),
        "rss_added_mb_warm": spread([epoch.rss_added_mb for epoch in warm]),
    }
    facts: dict[str, object] = {key: _rounded(value.median) for key, value in spreads.items()}
    facts["client"] = cold[0].client
    facts["num_samples"] = cold[0].num_samples
    facts["rounds"] = len(cold)
    facts["spread"] = {key: [_rounded(value.low), _rounded(value.high)] for key, value in spreads.items()}
    return facts


class Delivered(Protocol):
    """What an epoch says of the samples that it delivered; see `benchmarks.measurement.Epoch`."""

    @property
    def num_samples(self) -> int: ...

    @property
    def class_counts(self) -> list[int]: ...

    @property
    def digest(self) -> str | None: ...


def check_same_samples(epochs: Mapping[str, Sequence[Delivered]]) -> None:
    """Makes sure that all sides delivered the same images, or a comparison means nothing."""
    seen = {
        (epoch.num_samples, tuple(epoch.class_counts), epoch.digest): side
        for side, side_epochs in epochs.items()
        for epoch in side_epochs
    }
    if len(seen) > 1:
        told = "; ".join(f"{side}: {number}, {counts}, {digest}" for (number, counts, digest), side in seen.items())
        raise ValueError(f"the sides did not deliver the same images ({told})")


def _ratio(remote: Sequence[Epoch], local: Sequence[Epoch]) -> Spread:
    return spread([one.samples_per_s / other.samples_per_s for one, other in zip(remote, local, strict=True)])


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value, 1)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
