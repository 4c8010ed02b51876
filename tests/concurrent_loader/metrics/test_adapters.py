"""What the monitoring systems receive."""

from __future__ import annotations

import json
import urllib.request

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from concurrent_loader import (
    ConfigurationError,
    JsonLinesMetrics,
    LoaderStats,
    LoggedMetrics,
    OpenTelemetryMetrics,
    PrometheusMetrics,
    TensorBoardMetrics,
)


def test_open_telemetry(busy) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics = OpenTelemetryMetrics(provider)
    metrics.observe(busy(stats=LoaderStats(batch_waits=(1, *[0] * 15))))
    metrics.observe(busy())
    metrics.observe(busy(name="valid", rank=0))
    data = reader.get_metrics_data()
    found = {each.name: each for each in data.resource_metrics[0].scope_metrics[0].metrics}
    provider.shutdown()
    name, rank = "concurrent_loader.name", "concurrent_loader.rank"
    (train, valid) = found["concurrent_loader.samples"].data.data_points
    assert (train.value, dict(train.attributes)) == (640, {name: "train", rank: 1})
    assert (valid.value, dict(valid.attributes)) == (640, {name: "valid", rank: 0})
    assert found["concurrent_loader.fetch.io"].unit == "By"
    lookups = {
        point.attributes["concurrent_loader.result"]: point.value
        for point in found["concurrent_loader.cache.lookups"].data.data_points
        if point.attributes[name] == "train"
    }
    assert lookups == {"hit": 6, "miss": 2}
    waits = found["concurrent_loader.wait.duration"].data.data_points[0]
    assert tuple(waits.bucket_counts) == (3, *[0] * 14, 1)


def test_open_telemetry_without_an_sdk_does_nothing(busy) -> None:
    OpenTelemetryMetrics().observe(busy())


def test_prometheus(busy) -> None:
    with PrometheusMetrics(port=0) as metrics:
        metrics.observe(busy())
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        with pytest.raises(ConfigurationError, match="port of its own"):
            PrometheusMetrics(metrics.port)
    metrics.close()
    labels = 'name="train",rank="1"'
    for line in (
        f"concurrent_loader_samples_total{{{labels}}} 640.0",
        f'concurrent_loader_time_seconds_total{{{labels},state="wait_store"}} 1.0',
        f"concurrent_loader_fetch_io_bytes_total{{{labels}}} 4000.0",
        f"concurrent_loader_buffer_utilization_ratio{{{labels}}} 0.75",
        f'concurrent_loader_wait_duration_seconds_bucket{{le="60.0",{labels}}} 3.0',
        f'concurrent_loader_wait_duration_seconds_bucket{{le="+Inf",{labels}}} 4.0',
        f"concurrent_loader_wait_duration_seconds_sum{{{labels}}} 1.0",
    ):
        assert line in lines


def test_prometheus_in_a_registry_of_the_program(busy) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(None, registry=registry)
    assert metrics.port is None
    metrics.observe(busy())
    assert b"concurrent_loader_batches_total" in generate_latest(registry)


def test_files_functions_and_writers(tmp_path, busy) -> None:
    scalars, rows = {}, []

    class Writer:
        def add_scalar(self, tag, value, step):
            scalars[tag] = value, step

    for observer in (JsonLinesMetrics(tmp_path / "m.jsonl"), LoggedMetrics(rows.append), TensorBoardMetrics(Writer())):
        observer.observe(busy(time_s=12.3456))
        observer.observe(busy(time_s=13))
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [(line["time_s"], line["loader"], line["rank"]) for line in lines] == [
        (12.346, "train", 1),
        (13, "train", 1),
    ]
    assert lines[0]["samples"] == rows[0]["train/samples"] == 640
    assert scalars["train/wait.share"] == (0.25, 4)


@pytest.mark.parametrize(("adapter", "missing"), [(OpenTelemetryMetrics, "opentelemetry"), (PrometheusMetrics, "prom")])
def test_a_missing_library_is_named(monkeypatch, adapter, missing) -> None:
    def refuse(name):
        assert name.startswith(missing)
        raise ImportError(name)

    monkeypatch.setattr("concurrent_loader.metrics.optional_library.import_module", refuse)
    with pytest.raises(ConfigurationError, match="its extra"):
        adapter()
