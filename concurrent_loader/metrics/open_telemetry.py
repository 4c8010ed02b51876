"""Exports metrics through OpenTelemetry's API. Without an SDK the API does nothing, and costs next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from concurrent_loader.metrics.instruments import BATCH_WAIT, METRICS, PREFIX, Metric
from concurrent_loader.metrics.optional_library import optional_library
from concurrent_loader.metrics.snapshot import Snapshot
from concurrent_loader.stats.loader_stats import WAIT_BOUNDS_S

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

__all__ = ["OpenTelemetryMetrics"]


class OpenTelemetryMetrics:
    """Exports the newest snapshots as observable instruments; see `observe`.

    Every value has the attributes ``concurrent_loader.name`` and ``concurrent_loader.rank``. In the histogram of waits
    each wait counts as the upper bound of its bucket: counts are exact, the sum is too high. ``concurrent_loader.time``
    has the exact sum. Needs the extra ``otel``; an SDK and an exporter are the program's own.

    Args:
        meter_provider: Provider; default the global one.

    Raises:
        ConfigurationError: ``opentelemetry-api`` is not installed.

    Example:
        >>> from concurrent_loader import OpenTelemetryMetrics
        >>> from concurrent_loader.metrics.snapshot import Snapshot
        >>> OpenTelemetryMetrics().observe(Snapshot(name="train"))
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        api = optional_library("opentelemetry.metrics", package="opentelemetry-api", extra="otel")
        self._make_observation = api.Observation
        self._latest: dict[tuple[str, int], Snapshot] = {}
        meter = api.get_meter(PREFIX, meter_provider=meter_provider)
        create = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}
        for metric in METRICS:
            create[metric.kind](
                f"{PREFIX}.{metric.name}",
                callbacks=[partial(self._read, metric)],
                unit=metric.unit,
                description=metric.description,
            )
        self._waits = meter.create_histogram(
            f"{PREFIX}.{BATCH_WAIT.name}",
            unit=BATCH_WAIT.unit,
            description=BATCH_WAIT.description,
            explicit_bucket_boundaries_advisory=WAIT_BOUNDS_S,
        )

    def observe(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot for the next collection."""
        key = snapshot.name, snapshot.rank
        before = self._latest.get(key)
        known = before.stats.batch_waits if before is not None else ()
        attributes = _attributes(snapshot)
        for number, count in enumerate(snapshot.stats.batch_waits):
            bound_s = WAIT_BOUNDS_S[number] if number < len(WAIT_BOUNDS_S) else 2 * WAIT_BOUNDS_S[-1]
            for _ in range(count - (known[number] if known else 0)):
                self._waits.record(bound_s, attributes)
        self._latest[key] = snapshot

    def _read(self, metric: Metric, _: CallbackOptions) -> Iterator[Observation]:
        for snapshot in list(self._latest.values()):
            attributes = _attributes(snapshot)
            for each, value in metric.read(snapshot).items():
                more = {f"{PREFIX}.{metric.attribute}": each} if metric.attribute else {}
                yield self._make_observation(value, {**attributes, **more})


def _attributes(snapshot: Snapshot) -> dict[str, Any]:
    return {f"{PREFIX}.name": snapshot.name, f"{PREFIX}.rank": snapshot.rank}
