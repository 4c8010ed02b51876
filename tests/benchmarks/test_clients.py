from __future__ import annotations

import asyncio

import pytest

from benchmarks.clients import CLIENTS, RANGE_BYTES, Load, fill, measure, summarise


def test_figures_are_medians_per_request_and_per_gb():
    load = Load(num_keys=1, num_small=100, num_ranges=4, num_rounds=3)
    small = [(1.0, 0.5), (9.0, 9.0), (2.0, 1.0)]
    ranges = [(0.5, 0.1), (0.25, 0.2), (1.0, 0.3)]
    num_gb = 4 * RANGE_BYTES / 1e9
    assert list(summarise(list(zip(small, ranges, strict=True)), load).values()) == [
        50.0,
        10.0,
        num_gb / 0.5,
        0.2 / num_gb,
    ]


@pytest.mark.s3
def test_every_client_is_measured(s3_bucket):
    rounds = []
    load = Load(num_keys=3, num_small=6, num_ranges=2, num_rounds=1)
    fill(s3_bucket.url, s3_bucket.storage_options, load)
    found = asyncio.run(measure(s3_bucket.url, s3_bucket.storage_options, load, lambda: rounds.append(1)))
    assert found.keys() == CLIENTS.keys()
    assert len(rounds) == 2 * len(CLIENTS)
    for figures in found.values():
        assert figures["small_per_s"] > 0
        assert figures["ranges_cpu_s_per_gb"] > 0
