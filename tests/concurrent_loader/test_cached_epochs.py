"""The plan feeds the cache: an epoch begins with what the one before has left, and the order does not bend to it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, ObjectDataset, ShardDataset
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.cache import MemoryShardCache
from concurrent_loader.storage.errors import ConfigurationError

pytestmark = pytest.mark.usefixtures("no_leaks")

NUM_SAMPLES, PER_SHARD = 480, 4


@pytest.fixture
def many_shards() -> str:
    url = f"memory://{uuid4().hex}"
    draw = np.random.default_rng(0)
    with ShardWriter(url, columns={"data": "bytes", "label": "int64"}, shard_size="4KiB") as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"data": draw.bytes(1000), "label": number})
    return url


def loader_over(dataset: ShardDataset, **options: Any) -> ConcurrentDataLoader:
    return ConcurrentDataLoader(
        dataset,
        **{"batch_size": 16, "shuffle": True, "seed": 5, "shuffle_window": 16, "groups": 2, "prefetch_bytes": "8KiB"}
        | options,
    )


def epoch_of(loader: ConcurrentDataLoader) -> list[int]:
    return [label for batch in loader for label in batch["label"].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_later_epochs_hit_as_much_as_the_cache_holds(many_shards: str, tmp_path: Path, share: float) -> None:
    with ShardDataset(many_shards) as plain:
        expected = [epoch_of(loader) for loader in [loader_over(plain)] for _ in range(3)]
        budget = int(share * plain.manifest.num_bytes)
    with ShardDataset(many_shards, cache_dir=tmp_path / "cache", cache_bytes=budget) as dataset:
        num_shards = len(dataset.manifest.shards)
        loader = loader_over(dataset)
        hits = []
        for epoch in range(3):
            before = dataset.cache_stats.num_hits
            assert epoch_of(loader) == expected[epoch]  # whatever is cached, the order is the order
            hits.append(dataset.cache_stats.num_hits - before)
        assert hits[0] == 0
        assert min(hits[1:]) > 0.9 * share * num_shards - 2
        assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= budget


@pytest.mark.slow
def test_an_epoch_begins_with_what_is_there(many_shards: str, tmp_path: Path) -> None:
    with ShardDataset(many_shards) as plain:
        budget = plain.manifest.num_bytes // 4
    with ShardDataset(many_shards, cache_dir=tmp_path / "cache", cache_bytes=budget) as dataset:
        loader = loader_over(dataset)
        epoch_of(loader)
        resident = {path.stem for path in (tmp_path / "cache").iterdir()}
        first = [dataset.manifest.shards[shard].digest for _, shard in loader._plan(1).units_in_order()]
        assert len(resident) >= 0.2 * len(first)
        # But for what chance does within a window, and for two shards that lie across the border of the groups.
        assert len(resident - set(first[: len(resident) + 6])) <= 2


@pytest.mark.slow
def test_two_ranks_share_a_folder_and_its_schedule(many_shards: str, tmp_path: Path) -> None:
    with ShardDataset(many_shards) as plain:
        budget = plain.manifest.num_bytes // 2
        num_shards = len(plain.manifest.shards)
    datasets = [ShardDataset(many_shards, cache_dir=tmp_path / "cache", cache_bytes=budget) for _ in range(2)]
    try:
        loaders = [loader_over(each, batch_size=8, rank=rank, world_size=2) for rank, each in enumerate(datasets)]
        for _ in range(3):
            labels = [
                label
                for batches in zip(*loaders, strict=True)
                for batch in batches
                for label in batch["label"].tolist()
            ]
            assert sorted(labels) == list(range(NUM_SAMPLES))
        stats = [each.cache_stats for each in datasets]
        assert sum(each.num_hits for each in stats) > 2 * 0.4 * num_shards
    finally:
        for each in datasets:
            each.close()


def test_single_samples_are_kept_without_their_shards(many_shards: str, tmp_path: Path) -> None:
    for expected_gets in (True, False):
        with ShardDataset(many_shards, cache_dir=tmp_path / "cache") as dataset:
            before = dataset.fetch_stats.num_gets
            assert [dataset[number]["label"] for number in (3, 7, 100)] == [3, 7, 100]
            assert (dataset.fetch_stats.num_gets > before) is expected_gets
            assert dataset.cache_stats.num_misses == 0
            assert (dataset.cache_stats.num_sparse_hits > 0) is not expected_gets


def test_a_column_is_kept_too(many_shards: str, tmp_path: Path) -> None:
    for expected_gets in (1, 0):
        with ShardDataset(many_shards, cache_dir=tmp_path / "cache") as dataset:
            before = dataset.fetch_stats.num_gets
            assert np.array_equal(dataset.column("label"), np.arange(NUM_SAMPLES))
            assert dataset.fetch_stats.num_gets - before == expected_gets


@pytest.mark.slow
def test_a_folder_that_cannot_be_used_is_an_error_unless_it_is_not_required(
    many_shards: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for kind in (ShardDataset, ObjectDataset):
        with pytest.raises(ConfigurationError, match="cache_required=False"):
            kind(many_shards, cache_dir=tmp_path / "file")
    with (
        caplog.at_level(logging.WARNING),
        ShardDataset(many_shards, cache_dir=tmp_path / "file", cache_required=False) as dataset,
    ):
        assert isinstance(dataset.reader.cache, MemoryShardCache)
        assert sorted(epoch_of(loader_over(dataset))) == list(range(NUM_SAMPLES))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.slow
def test_a_drive_that_breaks_in_the_middle_is_gone_round(
    many_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every read of a cached file fails from the fifth batch on, with shards open that were whole before."""
    broken = False
    real: Callable[..., bytes] = os.pread

    def pread(fd: int, num_bytes: int, offset: int) -> bytes:
        if broken:
            raise OSError(5, "Input/output error")
        return real(fd, num_bytes, offset)

    monkeypatch.setattr("concurrent_loader.storage.cache.blocking_io.os.pread", pread)
    with caplog.at_level(logging.WARNING), ShardDataset(many_shards, cache_dir=tmp_path / "cache") as dataset:
        labels: list[int] = []
        for number, batch in enumerate(loader_over(dataset)):
            broken = number >= 4
            labels += batch["label"].tolist()
        assert sorted(labels) == list(range(NUM_SAMPLES))
    assert len(caplog.records) <= 2
