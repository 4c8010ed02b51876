"""The work for one sample does not depend on how many samples its shard has: counted, not timed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.datasets.views import Selectable
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import NotFound
from concurrent_loader.storage.shards.format.small_column import SmallColumn
from concurrent_loader.storage.shards.manifest.manifest import Manifest, ShardEntry
from concurrent_loader.storage.shards.manifest.snapshots import commit
from concurrent_loader.storage.stores import open_store

sys.path.append(str(Path(__file__).parents[1] / "workers"))  # workers import it from there, too
import worker_recipes as recipes

NUM_SAMPLES = 400
FEW, MANY = "4KiB", "4MiB"  # the second holds all samples

COLUMNS = {
    "number": "int64",
    "flag": "bool",
    "box": "float32[2,2]",
    "vector": "float32[260]",
    "ragged": "int32[...]",
    "data": "bytes",
    "image": "jpeg",
    "text": "str",
    "note": "str",
    "facts": "json",
}


def sample(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "flag": number % 2 == 0,
        "box": np.full((2, 2), number, np.float32),
        "vector": np.full(260, number, np.float32),
        "ragged": np.full(5, number, dtype=np.int32),
        "data": number.to_bytes(4, "little"),
        "image": b"\xff\xd8\xff" + number.to_bytes(4, "little"),
        "text": f"the caption of photograph {number}, a cat that looks out of the window " * 2,  # compressed
        "note": f"{number * 2654435761 % 2**32:08x}",  # stored as it is
        "facts": {"number": number, "tags": ["cat", "window"]},
    }


def columns_of(kind: str) -> dict[str, str]:
    return {"number": "int64", kind: COLUMNS[kind]}


def write(url: str, columns: dict[str, str], shard_size: str) -> str:
    with ShardWriter(url, columns=columns, shard_size=shard_size) as writer:
        for number in range(NUM_SAMPLES):
            given = sample(number)
            writer.write({name: given[name] for name in columns})
    return url


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Counts the calls that Python makes, of functions in Python and in C, in threads that are started meanwhile."""
    counts = [0]

    def note(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            counts[0] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def load(dataset: Selectable) -> int:
    loader = ConcurrentDataLoader(dataset, batch_size=32, shuffle=True, num_threads=2)  # type: ignore[arg-type]
    return sum(len(batch["number"]) for batch in loader)


def load_thin_view(dataset: Selectable) -> int:
    return load(dataset.subset(range(0, len(dataset), 40)))


def load_view(dataset: Selectable) -> int:
    return load(dataset.subset(range(0, len(dataset), 2)))


def slices(dataset: Selectable) -> int:
    return sum(len(dataset[start : start + 10]) for start in range(0, len(dataset), 10))


def single_samples(dataset: Selectable) -> int:
    return sum(len([dataset[number]]) for number in range(0, len(dataset), 20))


def whole_column(dataset: Selectable) -> int:
    return sum(len(dataset.column(name)) for name in dataset.columns if name in ("number", "text", "facts", "box"))


def calls_per_sample(url: str, use: Callable[[Selectable], int]) -> float:
    with counted_calls() as counts, ShardDataset(url) as dataset:
        delivered = use(dataset)
    return counts[0] / delivered


KINDS = [name for name in COLUMNS if name != "number"]
USES = [load, load_view, load_thin_view, slices, single_samples, whole_column]


@pytest.fixture(scope="module", params=KINDS)
def urls(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The same samples with few rows per shard, and with all of them in one."""
    few, many = (write(f"memory://{uuid4().hex}", columns_of(request.param), size) for size in (FEW, MANY))
    return few, many


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_calls_per_sample(urls: tuple[str, str], use: Callable[[Selectable], int]) -> None:
    few, many = (calls_per_sample(url, use) for url in urls)
    assert many <= 1.1 * few + 5


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of str and json columns that are decoded."""
    rows: list[int] = []
    encoded = SmallColumn.encoded

    def noted(self: SmallColumn, some: Any) -> Any:
        rows.extend(some.tolist())
        return encoded(self, some)

    monkeypatch.setattr(SmallColumn, "encoded", noted)
    return rows


@pytest.mark.parametrize("kind", ["text", "note", "facts"])
def test_each_value_is_decoded_once(kind: str, decoded: list[int]) -> None:
    url = write(f"memory://{uuid4().hex}", columns_of(kind), MANY)
    with ShardDataset(url) as dataset:
        assert load(dataset) == NUM_SAMPLES == len(decoded)
        view = dataset.subset([399, 3, 5, 200])
        del decoded[:]
        assert view.column(kind) == [sample(number)[kind] for number in (3, 5, 200, 399)]
        assert decoded == [3, 5, 200, 399]
        assert view.column("number").tolist() == [3, 5, 200, 399]  # type: ignore[union-attr]


def test_a_column_of_a_view_asks_its_own_shards_alone() -> None:
    url = write(f"memory://{uuid4().hex}", columns_of("text"), FEW)
    with ShardDataset(url) as dataset:
        assert len(dataset.manifest.shards) > 10
        before = dataset.fetch_stats.num_gets
        first, second = dataset.unit_bounds[[3, 9]].tolist()
        assert dataset.subset([first, second]).column("text") == [sample(number)["text"] for number in (first, second)]
        assert dataset.fetch_stats.num_gets - before == 2


@pytest.mark.processes
def test_workers_decode_each_value_once(tmp_path: Path) -> None:
    url = write(str(tmp_path / "dataset"), {"number": "int64", "text": "str", "facts": "json"}, MANY)
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(
            dataset, batch_size=100, shuffle=True, num_workers=1, num_threads=1, prefetch_batches=1,
            worker_init_fn=recipes.count_decoded, collate_fn=recipes.with_num_decoded,
        )  # fmt: skip
        counts = [count for _, count in loader]
    assert len(counts) == 4
    assert 0 < max(counts) <= 2 * NUM_SAMPLES  # of two columns


@pytest.mark.slow
async def test_a_missing_shard_is_missed_once(tmp_path: Path) -> None:
    entry = ShardEntry(
        key="shards/missing.cls", size=1000, num_samples=1, tail_start=32, digest="0" * 32, chunk_digests=(0,),
        payload_bytes=0,
    )  # fmt: skip
    async with open_store(str(tmp_path)) as store:
        await commit(store, Manifest(snapshot=1, schema={"text": "str"}, shards=(entry,) * 5_000))
    with ShardDataset(str(tmp_path)) as dataset:
        before = dataset.fetch_stats.num_gets
        with pytest.raises(NotFound):
            dataset.column("text")
        with pytest.raises(NotFound):
            dataset[:5_000]
        assert dataset.fetch_stats.num_gets - before < 2000
