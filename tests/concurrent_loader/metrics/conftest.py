"""A snapshot in which something has happened."""

from __future__ import annotations

import pytest

from concurrent_loader.metrics.running import Place
from concurrent_loader.metrics.snapshot import Snapshot
from concurrent_loader.stats.loader_stats import LoaderStats
from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.fetch import FetchStats


def make_busy(**more):
    stats = LoaderStats(
        num_batches=4, num_samples=640, num_skipped=1, total_s=4.0, wait_s=1.0, device_s=0.5, wait_store_s=1.0,
        consumer_s=2.5, fetch=FetchStats(num_gets=7, num_bytes=4000, num_hedges=3, num_hedges_won=1),
        cache=CacheStats(num_hits=5, num_sparse_hits=1, num_misses=2), batch_waits=(3, *[0] * 14, 1),
    )  # fmt: skip
    before = LoaderStats(num_samples=240, total_s=2.0, wait_s=0.5, fetch=FetchStats(num_bytes=2000))
    pipeline = PipelineStatus(num_ready=3, num_making=1, max_batches=4)
    given = {"name": "train", "rank": 1, "place": Place(2, 9, 10), "interval_s": 2.0, "pipeline": pipeline}
    return Snapshot(**{**given, "stats": stats, "before": before, **more})


@pytest.fixture(scope="session")
def busy():
    return make_busy
