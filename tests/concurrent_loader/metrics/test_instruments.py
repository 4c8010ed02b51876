"""The table of metrics: OpenTelemetry's conventions, and a bounded number of values."""

from __future__ import annotations

import re
from pathlib import Path

from concurrent_loader.metrics.instruments import BATCH_WAIT, METRICS, flat, values
from concurrent_loader.metrics.snapshot import Snapshot
from concurrent_loader.stats.loader_stats import LoaderStats

UNITS = {"s", "By", "1", "By/s", "{sample}/s"}


def test_names_and_units_follow_the_conventions() -> None:
    names = [metric.name for metric in (*METRICS, BATCH_WAIT)]
    assert len(set(names)) == len(names)
    for metric in (*METRICS, BATCH_WAIT):
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*(\.[a-z]+(_[a-z]+)*)*", metric.name)
        assert metric.unit in UNITS or re.fullmatch(r"\{[a-z]+\}", metric.unit)
        assert metric.description.endswith(".")


def test_the_number_of_values_does_not_depend_on_the_run(busy) -> None:
    empty = {(metric.name, each) for metric, each, _ in values(Snapshot(name="x"))}
    assert {(metric.name, each) for metric, each, _ in values(busy())} == empty


def test_values(busy) -> None:
    found = flat(busy())
    expected = {
        "batches": 4, "samples": 640, "samples.failed.skip": 1, "sample.rate": 200, "fetch.rate": 1000,
        "wait.share": 0.25, "time.consumer": 2.5, "time.device": 0.5, "time.wait_store": 1, "fetch.hedges.hedge": 1,
        "fetch.hedges.first": 2, "cache.lookups.hit": 6, "buffer.utilization": 0.75, "epoch": 2, "step": 9,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert sum(value for name, value in found.items() if name.startswith("time.")) == 4.0


def test_a_loader_that_knows_no_causes_has_its_wait_under_other() -> None:
    found = flat(Snapshot(name="x", stats=LoaderStats(total_s=3.0, wait_s=2.0)))
    assert (found["time.wait_other"], found["time.consumer"]) == (2.0, 1.0)


def test_the_documentation_lists_every_metric() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "metrics.md"
    pattern = r"^\| `([a-z_.]+)` \| (\S+) \| (?:`(\w+)`: (.*?))? ?\| "
    rows = re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE)
    expected = []
    for metric in (*METRICS, BATCH_WAIT):
        each = ", ".join(f"`{value}`" for value in metric.read(Snapshot(name="x"))) if metric.attribute else ""
        expected.append((metric.name, metric.unit, metric.attribute, each))
    assert rows == expected
