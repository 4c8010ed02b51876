"""Lists every metric once: name, unit and meaning by OpenTelemetry's conventions. All adapters export this table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from concurrent_loader.metrics.snapshot import Snapshot
from concurrent_loader.stats.wait_attribution import CAUSES

__all__ = ["BATCH_WAIT", "METRICS", "Metric", "flat", "values"]

PREFIX = "concurrent_loader"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a loader.

    Attributes:
        name: Name by OpenTelemetry's conventions, with dots.
        kind: ``"counter"`` (only grows), ``"gauge"``, or ``"histogram"``.
        unit: Unit in UCUM's notation: ``"s"``, ``"By"``, ``"1"``, ``"{sample}"``.
        description: Meaning, in one sentence.
        attribute: Attribute that tells the metric's values apart; empty if there is one value.
        read: Function from a snapshot to the values, by the attribute's value. Its keys are fixed.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str
    attribute: str = ""
    read: Callable[[Snapshot], Mapping[str, float]] = lambda snapshot: {}


def _times(snapshot: Snapshot) -> dict[str, float]:
    stats = snapshot.stats
    waits = {f"wait_{cause}": getattr(stats, f"wait_{cause}_s") for cause in CAUSES}
    waits["wait_other"] += max(0.0, stats.wait_s - sum(waits.values()))  # of a loader that knows no causes
    other = max(0.0, stats.total_s - stats.wait_s - stats.device_s)
    return {"consumer": other, "device": stats.device_s, **waits}


_STAGES = ("read", "decode", "transform", "collate", "fill", "device_decode", "device_augment")

BATCH_WAIT = Metric("wait.duration", "histogram", "s", "Wait of the training loop for one batch.")

METRICS = (
    Metric("batches", "counter", "{batch}", "Batches delivered.", read=lambda s: {"": s.stats.num_batches}),
    Metric("samples", "counter", "{sample}", "Samples delivered.", read=lambda s: {"": s.stats.num_samples}),
    Metric(
        "samples.failed", "counter", "{sample}", "Samples whose image could not be decoded.", "policy",
        lambda s: {"skip": s.stats.num_skipped, "replace": s.stats.num_replaced},
    ),
    Metric("time", "counter", "s", "Wall time of the iterations, by what the loop did.", "state", _times),
    Metric(
        "stage.time", "counter", "s", "Thread time of the stages, waited for or not.", "stage",
        lambda s: {stage: getattr(s.stats, f"{stage}_s") for stage in _STAGES},
    ),
    Metric("wait.share", "gauge", "1", "Share of the last interval that the loop waited.",
           read=lambda s: {"": s.wait_share}),
    Metric("sample.rate", "gauge", "{sample}/s", "Samples per second in the last interval.",
           read=lambda s: {"": s.samples_per_s}),
    Metric("fetch.rate", "gauge", "By/s", "Bytes fetched per second in the last interval.",
           read=lambda s: {"": s.fetched_bytes_per_s}),
    Metric("epoch", "gauge", "{epoch}", "Epoch of the iteration.", read=lambda s: {"": s.place.epoch}),
    Metric("step", "gauge", "{batch}", "Batches delivered in this epoch.", read=lambda s: {"": s.place.step}),
    Metric("fetch.requests", "counter", "{request}", "GETs sent, repeated ones included.",
           read=lambda s: {"": s.stats.fetch.num_gets}),
    Metric("fetch.io", "counter", "By", "Bytes received from the store.",
           read=lambda s: {"": s.stats.fetch.num_bytes}),
    Metric("fetch.wasted.io", "counter", "By", "Bytes received and discarded.",
           read=lambda s: {"": s.stats.fetch.wasted_bytes}),
    Metric(
        "fetch.retries", "counter", "{request}", "Requests that repeated a failed one, by reason.", "reason",
        lambda s: {"failed": s.stats.fetch.num_retries, "digest": s.stats.fetch.num_refetched},
    ),
    Metric("fetch.throttled", "counter", "{response}", "Responses that asked for fewer requests.",
           read=lambda s: {"": s.stats.fetch.num_throttled}),
    Metric(
        "fetch.hedges", "counter", "{request}", "Second requests for slow ones, by who answered first.", "winner",
        lambda s: {"hedge": s.stats.fetch.num_hedges_won,
                   "first": max(0, s.stats.fetch.num_hedges - s.stats.fetch.num_hedges_won)},
    ),
    Metric("fetch.active_requests", "gauge", "{request}", "Requests in flight.",
           read=lambda s: {"": s.stats.fetch.in_flight}),
    Metric("fetch.active_requests.limit", "gauge", "{request}", "Requests that may be in flight.",
           read=lambda s: {"": s.stats.fetch.limit}),
    Metric(
        "fetch.first_byte.duration", "gauge", "s", "Time to the first byte of recent requests.", "quantile",
        lambda s: {"0.5": s.stats.fetch.first_byte_p50_s, "0.95": s.stats.fetch.first_byte_p95_s,
                   "0.99": s.stats.fetch.first_byte_p99_s},
    ),
    Metric(
        "cache.lookups", "counter", "{lookup}", "Lookups in the cache.", "result",
        lambda s: {"hit": s.stats.cache.num_hits + s.stats.cache.num_sparse_hits,
                   "miss": s.stats.cache.num_misses + s.stats.cache.num_sparse_misses},
    ),
    Metric(
        "cache.discarded", "counter", "{file}", "Files that the cache deleted or did not keep.", "reason",
        lambda s: {"evicted": s.stats.cache.num_evicted, "corrupt": s.stats.cache.num_quarantined,
                   "bypassed": s.stats.cache.num_bypassed},
    ),
    Metric(
        "buffer.batches", "gauge", "{batch}", "Batches ahead of the training loop.", "state",
        lambda s: {"ready": s.pipeline.num_ready, "making": s.pipeline.num_making},
    ),
    Metric("buffer.limit", "gauge", "{batch}", "Room for batches ahead.", read=lambda s: {"": s.pipeline.max_batches}),
    Metric("buffer.utilization", "gauge", "1", "Share of that room with finished batches.",
           read=lambda s: {"": s.pipeline.buffer_share}),
    Metric("prefetch.usage", "gauge", "By", "Bytes of shards requested ahead of their first use.",
           read=lambda s: {"": s.pipeline.prefetched_bytes}),
    Metric("prefetch.limit", "gauge", "By", "Budget for these bytes.",
           read=lambda s: {"": s.pipeline.max_prefetched_bytes}),
    Metric("threads.active", "gauge", "{thread}", "Decode threads at work.",
           read=lambda s: {"": s.pipeline.num_busy_threads}),
    Metric("device.io", "counter", "By", "Bytes copied to the device.", read=lambda s: {"": s.stats.device_bytes}),
    Metric(
        "images", "counter", "{image}", "Images of the device's formats, by who decoded them.", "decoder",
        lambda s: {"device": s.stats.num_device_decoded, "cpu": s.stats.num_cpu_decoded},
    ),
    Metric(
        "tokens", "counter", "{token}", "Tokens in packed rows.", "kind",
        lambda s: {"token": s.stats.num_tokens, "padding": s.stats.num_padding_tokens},
    ),
)  # fmt: skip


def values(snapshot: Snapshot) -> Iterator[tuple[Metric, str, float]]:
    """Yields every metric with its attribute's value and its own."""
    for metric in METRICS:
        for attribute, value in metric.read(snapshot).items():
            yield metric, attribute, float(value)


def flat(snapshot: Snapshot) -> dict[str, float]:
    """Returns all metrics as one flat dict, with names such as ``"cache.lookups.hit"``."""
    return {".".join(filter(None, (metric.name, each))): value for metric, each, value in values(snapshot)}
