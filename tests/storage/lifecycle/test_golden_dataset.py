"""A dataset that version 0.2 wrote stays readable: all snapshots, tags and columns."""

from __future__ import annotations

import runpy
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader.storage import (
    FetchEngine,
    ShardWriter,
    collect_garbage,
    describe_snapshots,
    list_tags,
    load_manifest,
    open_store,
)
from concurrent_loader.storage.cache import open_shard_cache
from concurrent_loader.storage.shards.reader import DatasetReader
from concurrent_loader.storage.shards.verify import verify_dataset

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return runpy.run_path(str(GOLDEN / "make_golden.py"), run_name="golden")


@pytest.mark.parametrize("snapshot", [1, 2, 3, "first", "paper-v1", None])
async def test_every_snapshot_is_read(golden: dict[str, Any], snapshot: int | str | None) -> None:
    engine = FetchEngine(open_store(str(GOLDEN / "dataset_v1")))
    manifest = await load_manifest(engine, snapshot)
    number = golden["TAGS"].get(snapshot, snapshot or 3)
    expected = [golden["sample"](each) for each in golden["SNAPSHOTS"][number]]
    assert (manifest.snapshot, manifest.num_samples) == (number, len(expected))
    assert list(manifest.schema.items()) == list(golden["COLUMNS"].items())
    reader = DatasetReader(manifest, engine, open_shard_cache(engine, None))
    for at, sample in enumerate(expected):
        found = await reader.read(at)
        for name, value in sample.items():
            np.testing.assert_array_equal(found[name], value)  # type: ignore[arg-type]
    assert not (await verify_dataset(engine, manifest)).problems
    await reader.cache.close()


async def test_facts(golden: dict[str, Any]) -> None:
    store = open_store(str(GOLDEN / "dataset_v1"))
    assert await list_tags(store) == golden["TAGS"]
    assert [info.digest for info in await describe_snapshots(store)] == [
        "dc3fbf3920e30a8065d816c1d7a257d9",
        "845d956bdfa1a22f754b5b7f98c1b782",
        "22bb495bf4f38f15763cffbd4dab8256",
    ]
    manifest = await load_manifest(store, 2)
    assert manifest.metadata == {"classes": {"label": ["cat", "dog"]}, "commit_tokens": {"monday": 2}}
    assert manifest.statistics["label"] == {"max": 4, "min": -3}


async def test_it_can_be_appended_to_and_collected(golden: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "dataset_v1", tmp_path / "data")
    with ShardWriter(tmp_path / "data", columns=golden["COLUMNS"], append=True) as writer:
        writer.write(golden["sample"](9))
    assert (writer.manifest.snapshot, writer.manifest.num_samples) == (4, 3)
    store = open_store(str(tmp_path / "data"))
    report = await collect_garbage(store, keep=1, grace=timedelta(0))
    assert (report.deleted_snapshots, report.kept_snapshots) == ((3,), (1, 2, 4))
    assert not (await verify_dataset(FetchEngine(store), await load_manifest(store, 1))).problems
