"""Serves metrics to Prometheus, as text over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from types import TracebackType
from typing import Any, Self

from concurrent_loader.metrics.instruments import BATCH_WAIT, METRICS, PREFIX, Metric
from concurrent_loader.metrics.optional_library import optional_library
from concurrent_loader.metrics.snapshot import Snapshot
from concurrent_loader.stats.loader_stats import WAIT_BOUNDS_S
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["PrometheusMetrics"]

_UNITS = {"s": "seconds", "By": "bytes", "1": "ratio", "By/s": "bytes_per_second", "{sample}/s": "per_second"}


class PrometheusMetrics:
    """Serves the newest snapshots at ``http://HOST:PORT/metrics``; see `observe`.

    Names follow OpenTelemetry's rules for Prometheus: ``concurrent_loader_samples_total``. Every value has the labels
    ``name`` and ``rank``. Needs the extra ``prometheus``.

    Args:
        port: Port; default 9464. 0: a free one, which `port` then names. None: no endpoint, only ``registry``.
        host: Address to listen on; default ``"127.0.0.1"``, this machine only. The endpoint has no access control.
        registry: ``prometheus_client.CollectorRegistry`` to register with; default a new one.

    Attributes:
        port: Port of the endpoint; None without one.

    Raises:
        ConfigurationError: ``prometheus-client`` is not installed, or the port is in use.

    Example:
        >>> from concurrent_loader import PrometheusMetrics
        >>> with PrometheusMetrics(port=0) as metrics:
        ...     metrics.port > 0
        True
    """

    def __init__(self, port: int | None = 9464, *, host: str = "127.0.0.1", registry: Any = None) -> None:
        self._library = optional_library("prometheus_client", package="prometheus-client", extra="prometheus")
        self._core = optional_library("prometheus_client.core", package="prometheus-client", extra="prometheus")
        self._latest: dict[tuple[str, int], Snapshot] = {}
        self._registry = self._library.CollectorRegistry() if registry is None else registry
        self._registry.register(self)
        self._server: Any = None
        self.port: int | None = None
        if port is not None:
            try:
                self._server, self._thread = self._library.start_http_server(port, host, self._registry)
            except OSError as error:
                raise ConfigurationError(
                    f"cannot listen on {host}:{port} ({error}); each process needs a port of its own, 0 finds one"
                ) from error
            self.port = self._server.server_port

    def observe(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot for the next scrape."""
        self._latest[snapshot.name, snapshot.rank] = snapshot

    def collect(self) -> Iterator[Any]:
        """Yields the metric families of all loaders, for ``prometheus_client``."""
        latest = list(self._latest.values())
        for metric in METRICS:
            kind = self._core.CounterMetricFamily if metric.kind == "counter" else self._core.GaugeMetricFamily
            own = [metric.attribute] if metric.attribute else []
            family = kind(_name(metric), metric.description, labels=["name", "rank", *own])
            for snapshot in latest:
                for each, value in metric.read(snapshot).items():
                    family.add_metric([snapshot.name, str(snapshot.rank), *([each] if own else [])], value)
            yield family
        waits = self._core.HistogramMetricFamily(_name(BATCH_WAIT), BATCH_WAIT.description, labels=["name", "rank"])
        for snapshot in latest:
            counts = snapshot.stats.batch_waits or (0,) * (len(WAIT_BOUNDS_S) + 1)
            bounds = [*map(str, WAIT_BOUNDS_S), "+Inf"]
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            waits.add_metric([snapshot.name, str(snapshot.rank)], buckets, snapshot.stats.wait_s)
        yield waits

    def close(self) -> None:
        """Ends the endpoint. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _name(metric: Metric) -> str:
    unit = _UNITS.get(metric.unit, "")
    return "_".join(filter(None, (PREFIX, metric.name.replace(".", "_"), unit)))
