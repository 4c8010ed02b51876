"""The sink and the source of Ray Data, without a cluster; and in a pipeline of Ray, which takes long to start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from concurrent_loader.storage.errors import AlreadyExists, CommitConflict, ConfigurationError, NotFound, SchemaError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.shards.manifest.snapshots import latest_snapshot, load_manifest
from concurrent_loader.storage.shards.verify import verify_dataset
from concurrent_loader.storage.shards.writing.writer import ShardWriter
from concurrent_loader.storage.stores import open_store

pytest.importorskip("ray.data")
pa = pytest.importorskip("pyarrow")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # importing ray takes seconds

COLUMNS = {"image": "bytes", "number": "int64", "box": "float32[4]", "text": "str", "facts": "json"}


@pytest.fixture
def url() -> str:
    return f"memory://ray-{uuid4()}"


def table(numbers: range) -> Any:
    return pa.table(
        {
            "image": [bytes([number % 256]) * 2000 for number in numbers],
            "number": list(numbers),
            "box": pa.array([[number, 1.5, 2.5, 3.5] for number in numbers], pa.list_(pa.float32())),
            "text": [f"text {number}" for number in numbers],
            "facts": [b'{"a": [1, null]}' for _ in numbers],
            "left_out": [None for _ in numbers],
        }
    )


def written(url: str, blocks: list[Any], **options: Any) -> Any:
    from concurrent_loader.storage.ray import ShardSink

    sink = ShardSink(url, columns=COLUMNS, shard_size="4KiB", **options)
    sink.on_write_start(None)
    results = [sink.write([block], SimpleNamespace(task_idx=number)) for number, block in enumerate(blocks)]
    sink.on_write_complete(SimpleNamespace(write_returns=results[::-1]))
    return sink.report


def rows(url: str, **options: Any) -> list[dict[str, Any]]:
    from ray.data.block import BlockAccessor

    from concurrent_loader.storage.ray import ShardSource

    found: list[dict[str, Any]] = []
    for task in ShardSource(url, **options).get_read_tasks(3):
        for block in task():
            found += BlockAccessor.for_block(block).iter_rows(public_row_format=True)
    return found


def test_rows_become_samples_and_return(url: str) -> None:
    report = written(url, [table(range(7)), table(range(7, 20))])
    assert (report.num_samples, report.manifest.snapshot) == (20, 1)
    assert len(report.manifest.shards) > 3

    async def verify() -> bool:
        async with open_store(url) as store:
            return (await verify_dataset(FetchEngine(store), await load_manifest(store))).problems == ()

    assert asyncio.run(verify())
    found = rows(url)
    assert [row["number"] for row in found] == list(range(20))
    assert found[3]["image"] == b"\x03" * 2000
    assert np.asarray(found[3]["box"]).tolist() == [3.0, 1.5, 2.5, 3.5]
    assert (found[3]["text"], found[3]["facts"]) == ("text 3", b'{"a":[1,null]}')


def test_the_same_samples_make_the_same_shards_as_a_writer(url: str) -> None:
    report = written(url, [table(range(20))])
    with ShardWriter(f"{url}-writer", columns=COLUMNS, shard_size="4KiB") as writer:
        for number in range(20):
            writer.write(
                {
                    "image": bytes([number]) * 2000,
                    "number": number,
                    "box": np.array([number, 1.5, 2.5, 3.5], np.float32),
                    "text": f"text {number}",
                    "facts": {"a": [1, None]},
                }
            )
    assert [each.key for each in report.manifest.shards] == [each.key for each in writer.manifest.shards]


def test_appending_and_reading_a_snapshot(url: str) -> None:
    written(url, [table(range(3))])
    with pytest.raises(AlreadyExists):
        written(url, [table(range(3))])
    written(url, [table(range(3, 5))], append=True, token="second")
    with pytest.raises(AlreadyExists, match="this commit already"):
        written(url, [table(range(3, 5))], append=True, token="second")
    assert [row["number"] for row in rows(url, columns=["number"])] == list(range(5))
    assert list(rows(url, columns=["text"], snapshot=1)[0]) == ["text"]
    assert len(rows(url, snapshot=1)) == 3


def test_what_cannot_work(url: str) -> None:
    from concurrent_loader.storage.ray import ShardSource

    with pytest.raises(SchemaError, match="no such column"):
        written(url, [pa.table({"number": [1]})])
    assert asyncio.run(latest_snapshot(open_store(url))) is None
    with pytest.raises(NotFound):
        ShardSource(url)
    written(url, [table(range(3))])
    with pytest.raises(SchemaError, match="no such column"):
        ShardSource(url, columns=["nothing"])
    with pytest.raises(SchemaError, match="differ"):
        from concurrent_loader.storage.ray import ShardSink

        ShardSink(url, columns={"x": "int8"}, append=True).on_write_start(None)


def test_a_task_that_is_returned_twice(url: str) -> None:
    from concurrent_loader.storage.ray import ShardSink

    sink = ShardSink(url, columns=COLUMNS)
    sink.on_write_start(None)
    result = sink.write([table(range(3))], SimpleNamespace(task_idx=0))
    with pytest.raises(ConfigurationError, match="more than once"):
        sink.on_write_complete(SimpleNamespace(write_returns=[result, result]))


def test_another_writer_in_between(url: str) -> None:
    from concurrent_loader.storage.ray import ShardSink

    sink = ShardSink(url, columns=COLUMNS)
    sink.on_write_start(None)
    result = sink.write([table(range(3))], SimpleNamespace(task_idx=0))
    written(url, [table(range(5))])
    with pytest.raises(CommitConflict):
        sink.on_write_complete(SimpleNamespace(write_returns=[result]))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("one_ray_cluster")
def test_a_pipeline_of_ray(tmp_path: Path) -> None:
    import ray

    from concurrent_loader.storage.ray import ShardSink, ShardSource

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        url = str(tmp_path / "made")
        numbers = ray.data.range(1000).map(lambda row: {"number": row["id"] * 2, "image": b"x" * 100})
        numbers.write_datasink(ShardSink(url, columns={"number": "int64", "image": "bytes"}, shard_size="16KiB"))
        found = ray.data.read_datasource(ShardSource(url)).take_all()
        assert sorted(row["number"] for row in found) == list(range(0, 2000, 2))
        assert all(row["image"] == b"x" * 100 for row in found)
    finally:
        ray.shutdown()
