"""What `concurrent-loader top` shows, on terminals of 60 and 100 columns."""

from __future__ import annotations

import io
from dataclasses import asdict

import pytest
from rich.console import Console

from concurrent_loader.metrics.live_view import live_rows, live_table
from concurrent_loader.stats.loader_stats import LoaderStats
from concurrent_loader.stats.pipeline_status import PipelineStatus, SlowRequest
from concurrent_loader.stats.wait_attribution import BatchStatus
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.fetch import FetchStats


def told(rank=0, **more):
    fetch = FetchStats(num_gets=50, in_flight=8, limit=16, num_retries=3, first_byte_p50_s=0.03, first_byte_p95_s=0.2)
    status = PipelineStatus(
        num_ready=3, num_making=1, max_batches=4, prefetched_bytes=96 << 20, max_prefetched_bytes=128 << 20,
        num_busy_threads=1, num_threads=2,
        slow=(SlowRequest("shards/[3f].cls", 12.5), SlowRequest("soon", 0.1), SlowRequest("9.cls", 2.0, 1)),
        batch=BatchStatus("store", "waits for shard 3f from the store", 2.0, 1),
    )  # fmt: skip
    window = {name: 0.0 for name in LoaderStats.__slots__ if name.endswith("_s")} | {
        "seconds": 30.0, "total_s": 30.0, "wait_s": 9.0, "wait_store_s": 7.5, "wait_decode_s": 1.5,
        "num_samples": 36_000, "num_batches": 141, "num_bytes": 60 << 20, "num_gets": 45,
    }  # fmt: skip
    stats = LoaderStats(fetch=fetch, cache=CacheStats(num_hits=9, num_misses=1)).to_dict()
    return {
        "loader": "NativeDataLoader", "dataset": "ShardDataset s3://bucket/photos", "rank": rank, "world_size": 2,
        "epoch": 3, "step": 120, "num_steps": 1000, "state": "wait", "window": window, "stages": asdict(status),
        "stats": stats, **more,
    }  # fmt: skip


def shown(answers, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(live_table(answers, width))
    return console.file.getvalue().splitlines()


def test_rows() -> None:
    rows = live_rows(told())
    assert dict(rows[:2]) == {"position": "epoch 3, step 120 of 1,000", "speed": "1,200 samples/s, 4.7 batches/s"}
    texts = [text for _, text in rows]
    for text in (
        "█████░░░░░ 8 of 16 in flight",
        "2.0 MiB/s, 1.5 GETs/s",
        "first byte 30 ms, 95 % 200 ms",
        "3 retried",
        "12.5 s shards/[3f].cls",
        "2.0 s worker 1: 9.cls",
        "█████████░ 9 hits, 1 misses",
        "████████░░ 96.0 MiB of 128.0 MiB",
        "█████░░░░░ 1 of 2 busy",
        "████████░░ 3 ready, 1 being made, of 4",
        "training 70%, wait for store 25%, wait for decode 5%",
        "waiting: the next batch waits for shard 3f from the store, for 2.0 s",
    ):
        assert text in texts
    assert not any("soon" in text for text in texts)


def test_a_loader_without_stages_has_fewer_rows() -> None:
    bare = told(stages=asdict(PipelineStatus()), stats=LoaderStats().to_dict(), num_steps=None, state="consumer")
    assert [name for name, _ in live_rows(bare)] == ["position", "speed", "last 30 s", "now"]
    assert live_rows(bare)[-1][1] == "training"


@pytest.mark.parametrize(("width", "abreast"), [(60, 1), (100, 2)])
def test_ranks_side_by_side(width, abreast) -> None:
    answers = [{"program": "train.py", "pid": 10 + rank, "loaders": [told(rank)]} for rank in range(2)]
    lines = shown(answers, width)
    assert all(len(line) <= width for line in lines)
    positions = [line.count("epoch 3, step 120 of 1,000") for line in lines]
    assert max(positions) == abreast
    assert sum(positions) == 2
    text = "\n".join(lines)
    for part in ("process 10, rank 0", "process 11, rank 1", "s3://bucket/photos", "shards/[3f].cls", "last 30 s"):
        assert part in text


def test_a_foreign_answer_cannot_steer_the_terminal() -> None:
    answer = {"program": "\x1b[2J[red]", "pid": 1, "loaders": [told(dataset="\x1b]0;title\x07")]}
    text = "\n".join(shown([answer], 100))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]" in text
