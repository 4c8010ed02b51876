from __future__ import annotations

import pytest

from benchmarks.scale_points import PREFIX_REQUESTS_S, simulate_nodes
from benchmarks.synthetic import synthetic_manifest, write_manifest
from concurrent_loader import ShardDataset
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES


def test_the_manifest_is_one_that_opens(tmp_path) -> None:
    manifest = synthetic_manifest(1_000, 110_000)
    assert write_manifest(str(tmp_path), manifest) == (tmp_path / "manifests" / "0000000001.clm").stat().st_size
    with ShardDataset(str(tmp_path)) as dataset:
        assert dataset.manifest == manifest
        assert len(dataset) == 1_000
    assert max(entry.size for entry in manifest.shards) <= CHUNK_BYTES


def test_a_sample_larger_than_a_shard_has_one_of_its_own() -> None:
    manifest = synthetic_manifest(3, 10_000_000)
    assert [entry.num_samples for entry in manifest.shards] == [1, 1, 1]
    assert [len(entry.chunk_digests) for entry in manifest.shards] == [2, 2, 2]


def test_one_node_fetches_everything_once() -> None:
    manifest = synthetic_manifest(20_480, 110_000)
    row = simulate_nodes(manifest, 1, global_batch_size=512, node_samples_s=1_000, groups=None)
    assert row["gets"] == len(manifest.shards)
    assert (row["bytes_ratio"], row["shared_shards"], row["most_over_mean"], row["least_over_mean"]) == (1, 0, 1, 1)
    assert row["epoch_s"] == pytest.approx(20.48)
    assert row["requests_s"] == pytest.approx(row["gets"] / 20.48)
    assert row["busiest_requests_s"] >= row["requests_s"]
    assert row["objects_limit_share"] == pytest.approx(1_000 / PREFIX_REQUESTS_S)


def test_many_nodes_read_shards_several_times_with_few_groups_but_not_by_default() -> None:
    manifest = synthetic_manifest(65_536, 110_000)
    shared, own = (
        simulate_nodes(manifest, 32, global_batch_size=32 * 64, node_samples_s=1_000, groups=groups)
        for groups in (8, None)
    )
    assert (shared["groups"], own["groups"]) == (8, 32)
    assert shared["bytes_ratio"] > 3.5
    assert own["bytes_ratio"] < 1.1
    assert shared["shared_shards"] == 1
    assert own["shared_shards"] < 0.1
    assert own["most_over_mean"] < 1.2
