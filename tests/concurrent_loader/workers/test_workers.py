from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from concurrent_loader import Batch, ConcurrentDataLoader, Mixture, ObjectDataset, ShardDataset, Weighted
from concurrent_loader.augment import RandomResizedCrop
from concurrent_loader.errors import CollateError, LoaderError, LoaderTimeout, TransformError, WorkerDied
from concurrent_loader.pipeline.batch_iterator import END, Failure
from concurrent_loader.stats.wait_attribution import BatchStatus
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError, NotFound, StoreClosed
from concurrent_loader.storage.testing import no_leaks as leaving_nothing

sys.path.append(str(Path(__file__).parent))  # workers import it from there, too
import worker_recipes as recipes

pytestmark = pytest.mark.processes

NUM_SAMPLES = 203


def write(url: str, *, num_samples: int = NUM_SAMPLES, shard_size: str = "6KiB") -> None:
    columns = {"data": "bytes", "label": "int64", "name": "str", "box": "float32[4]", "facts": "json"}
    with ShardWriter(url, columns=columns, shard_size=shard_size) as writer:
        for number in range(num_samples):
            data = np.random.default_rng(number).bytes(400 + number)
            box = np.arange(4, dtype=np.float32) + number
            writer.write({"data": data, "label": number, "name": f"n{number}", "box": box, "facts": {"a": [number]}})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("workers") / "dataset")
    write(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _servers() -> None:
    """Starts what multiprocessing starts once a process, and keeps: the server that forks, and the tracker."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["concurrent_loader.workers.worker_main"])
    child = context.Process(target=recipes.keep, args=({},))
    child.start()
    child.join()
    child.close()


@pytest.fixture
def dataset(url: str) -> Iterator[ShardDataset]:
    with ShardDataset(url) as dataset:
        yield dataset


@pytest.fixture
def private_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the private folders of workers are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def assert_same(one: Any, other: Any) -> None:
    """Compares two batches to the last bit, types and strides included."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.stride(), one.device) == (
            other.dtype,
            other.shape,
            other.stride(),
            other.device,
        )
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert (one == other).all()
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
        if isinstance(one, Batch):
            assert (one.epoch, one.step, one.num_padded) == (other.epoch, other.step, other.num_padded)
            assert_same(one.sample_ids, other.sample_ids)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other


def same_batches(ones: list[Any], others: list[Any]) -> None:
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        assert_same(one, other)


def labels(batches: Any) -> list[list[int]]:
    return [batch["label"].tolist() for batch in batches]


def flat(parts: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


# -- the same as threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("last_batch", ["short", "drop", "pad"])
def test_batches_and_order_are_those_of_threads(dataset: ShardDataset, num_workers: int, last_batch: str) -> None:
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 5, "last_batch": last_batch}
    options["transform"] = recipes.enlarge
    threads = ConcurrentDataLoader(dataset, **options)
    workers = ConcurrentDataLoader(dataset, **options, num_workers=num_workers, persistent_workers=True)
    for _ in range(2):
        same_batches(list(threads), list(workers))
    assert threads.state_dict() == workers.state_dict()


def test_workers_can_be_watched(dataset: ShardDataset) -> None:
    batches = iter(ConcurrentDataLoader(dataset, 16, num_workers=2))
    next(batches)
    workers = batches._workers
    assert [worker.is_alive() for worker in workers] == [True, True]
    assert len({worker.pid for worker in workers}) == 2
    batches.close()
    assert batches._workers == []
    assert not hasattr(iter(ConcurrentDataLoader(dataset, 16)), "_workers")


def test_without_a_transform_and_without_shuffling(dataset: ShardDataset) -> None:
    threads, workers = (ConcurrentDataLoader(dataset, 10, num_workers=number) for number in (0, 2))
    same_batches(list(threads), list(workers))


@pytest.mark.parametrize("last_batch", ["short", "pad"])
def test_ranks_with_workers(dataset: ShardDataset, last_batch: str) -> None:
    for rank in range(2):
        threads, workers = (
            list(
                ConcurrentDataLoader(
                    dataset, 8, shuffle=True, last_batch=last_batch, rank=rank, world_size=2, num_workers=number
                )
            )
            for number in (0, 2)
        )
        same_batches(threads, workers)


def test_goes_on_at_any_step(dataset: ShardDataset) -> None:
    def loader(num_workers: int) -> ConcurrentDataLoader:
        return ConcurrentDataLoader(
            dataset, 32, shuffle=True, seed=2, num_workers=num_workers, persistent_workers=num_workers > 0
        )

    whole, workers = list(loader(0)), loader(2)
    for step in range(len(whole) + 1):
        one = loader(0)
        list(islice(iter(one), step))
        workers.load_state_dict(one.state_dict())
        rest = []
        for number, batch in enumerate(workers, start=step + 1):
            rest.append(batch)
            if number < len(whole):
                assert workers.state_dict()["step"] == number
        same_batches(whole[step:], rest)


def test_a_batch_of_ones_own_kind(dataset: ShardDataset) -> None:
    threads, workers = (
        list(ConcurrentDataLoader(dataset, 20, collate_fn=recipes.describe, num_workers=number)) for number in (0, 2)
    )
    same_batches([batch[:-1] for batch in threads], [batch[:-1] for batch in workers])
    assert len({batch[-1] for batch in workers}) == 2
    assert os.getpid() not in {batch[-1] for batch in workers}


def test_more_workers_than_steps(dataset: ShardDataset) -> None:
    assert labels(ConcurrentDataLoader(dataset, 150, num_workers=3)) == [list(range(150)), list(range(150, 203))]


def test_started_by_spawn(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 64, num_workers=1, multiprocessing_context="spawn", transform=recipes.keep)
    assert flat(labels(loader)) == list(range(NUM_SAMPLES))


def test_what_is_kept_of_a_batch_keeps_nothing_else(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 64, num_workers=1, transform=recipes.enlarge)
    first = next(iter(loader))
    assert first["label"].untyped_storage().nbytes() == 64 * 8
    assert first["picture"].untyped_storage().nbytes() == first["picture"].numel()
    first["picture"][:] = 1  # and all of it may be written to
    first["label"][:] = 1


# -- all kinds of data sets --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def objects_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("workers") / "objects"
    for number in range(60):
        path = folder / f"class-{number % 3}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff" + bytes([number]) * (100 + number))
    return str(folder)


@pytest.mark.parametrize("kind", ["subset", "filter", "objects", "mixture", "mixture by sample"])
def test_other_data_sets_and_views(
    url: str, objects_url: str, tmp_path: Path, private_folders: Path, kind: str
) -> None:
    with ShardDataset(url, hedge=None) as dataset, ObjectDataset(objects_url, labels="folder", hedge=None) as objects:
        chosen = {
            "subset": lambda: dataset.subset(range(150, 20, -2)),
            "filter": lambda: dataset.filter(lambda sample: sample["label"] % 3 == 0, columns=["label"]),
            "objects": lambda: objects,
            "mixture": lambda: Mixture([dataset, objects], [2, 1]),
            "mixture by sample": lambda: Mixture(
                [dataset.select_columns(["label"]), objects.select_columns(["label"])], [1, 1], per="sample"
            ),
        }[kind]()
        threads, workers = (
            ConcurrentDataLoader(chosen, 8, shuffle=True, num_workers=number, persistent_workers=number > 0)
            for number in (0, 2)
        )
        same_batches(list(threads), list(workers))
        workers.load_state_dict({**threads.state_dict(), "epoch": 0, "step": 3})
        threads.load_state_dict({**threads.state_dict(), "epoch": 0, "step": 3})
        same_batches(list(threads), list(workers))
        del workers
    assert list(private_folders.iterdir()) == []


@pytest.mark.parametrize("how", ["rgb", RandomResizedCrop((24, 32))])
def test_pictures(tmp_path: Path, make_jpeg: Callable[..., bytes], how: Any) -> None:
    with ShardWriter(str(tmp_path / "pictures"), columns={"image": "jpeg"}, shard_size="6KiB") as writer:
        for number in range(50):
            writer.write({"image": make_jpeg(number)})
    with ShardDataset(str(tmp_path / "pictures")) as dataset:
        threads, workers = (
            ConcurrentDataLoader(dataset, 16, shuffle=True, decode={"image": how}, num_workers=number)
            for number in (0, 2)
        )
        same_batches(list(threads), list(workers))


@pytest.mark.s3
@pytest.mark.parametrize("client", ["auto", "aiobotocore"])
def test_a_bucket(s3_bucket: Any, client: str) -> None:
    """Credentials go along, and each worker has connections of its own, although this process has some, too."""
    columns, options = {"label": "int64"}, s3_bucket.storage_options
    with ShardWriter(f"{s3_bucket.url}/data", columns=columns, shard_size="4KiB", storage_options=options) as writer:
        for number in range(600):
            writer.write({"label": number})
    with ShardDataset(f"{s3_bucket.url}/data", client=client, storage_options=options) as dataset:
        assert dataset[3]["label"] == 3
        threads, workers = (ConcurrentDataLoader(dataset, 64, shuffle=True, num_workers=number) for number in (0, 2))
        same_batches(list(threads), list(workers))


def test_a_mixture_keeps_the_caches_that_it_has(
    url: str, objects_url: str, tmp_path: Path, private_folders: Path
) -> None:
    with ShardDataset(url, cache_dir=tmp_path / "cache") as dataset, ObjectDataset(objects_url) as objects:
        mixture = Mixture([dataset, objects.select_columns(["key"])], [1, 1])
        batches = iter(ConcurrentDataLoader(mixture, 8, num_workers=1))
        next(batches)
        (private,) = private_folders.iterdir()
        names = {entry.digest for entry in dataset.manifest.shards}
        assert names & {file.stem for file in (tmp_path / "cache").glob("*.shard")}
        assert not names & {file.stem for file in private.glob("*.shard")}
        batches.close()


# -- what random numbers depend on -------------------------------------------------------------------------------------


def test_random_draws_depend_on_the_step_alone(dataset: ShardDataset) -> None:
    def drawn(num_workers: int, *, seed: int = 1, start: int = 0) -> list[Any]:
        loader = ConcurrentDataLoader(
            dataset, 40, shuffle=True, seed=seed, transform=recipes.draw, num_workers=num_workers
        )
        loader.load_state_dict({**loader.state_dict(), "step": start})
        return [batch["drawn"] for batch in loader]

    one = drawn(1)
    assert len({tuple(each) for batch in one for each in batch}) == NUM_SAMPLES
    assert drawn(3) == one
    assert drawn(2, start=2) == one[2:]
    assert drawn(2, seed=2) != one


def test_draws_of_collate_depend_on_the_step_alone(dataset: ShardDataset) -> None:
    one, three = (
        list(ConcurrentDataLoader(dataset, 40, collate_fn=recipes.draw_for_batch, num_workers=number))
        for number in (1, 3)
    )
    assert one == three
    assert len({number for _, number in one}) == len(one)


def size_of(file: Path) -> int:
    """Of a file that may be evicted at any moment."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


# -- one copy of each shard --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_workers_fetch_each_shard_once(tmp_path: Path, private_folders: Path, cached: bool, shuffle: bool) -> None:
    url = str(tmp_path / "dataset")
    write(url, num_samples=600, shard_size="4KiB")
    num_gets = {}
    for num_workers in (0, 2):
        cache_dir = tmp_path / f"cache-{num_workers}" if cached else None
        # By fsspec, as a store of its own: shards on a local path are read where they lie.
        with ShardDataset(url, cache_dir=cache_dir, hedge=None, client="fsspec") as dataset:
            num_shards = len(dataset.manifest.shards)
            loader = ConcurrentDataLoader(
                dataset, 8, shuffle, num_workers=num_workers, shuffle_window=40, prefetch_bytes="24KiB", num_threads=2
            )
            assert sorted(flat(labels(loader))) == list(range(600))
            num_gets[num_workers] = loader.stats.fetch.num_gets
            assert loader.stats.cache.num_misses == num_shards
            assert loader.stats.cache.num_bypassed == 0
    assert num_gets[2] <= 1.02 * num_gets[0]
    assert list(private_folders.iterdir()) == []


def test_a_private_folder_is_small_and_goes_with_the_workers(dataset: ShardDataset, private_folders: Path) -> None:
    loader = ConcurrentDataLoader(
        dataset, 8, shuffle=True, shuffle_window=10, prefetch_bytes=1, num_workers=1, groups=1
    )
    batches = iter(loader)
    for batch in islice(batches, 20):
        (folder,) = private_folders.iterdir()
        held_bytes = sum(size_of(file) for file in folder.glob("*.shard"))
        assert held_bytes < 0.6 * dataset.manifest.num_bytes, batch.step
    batches.close()
    assert list(private_folders.iterdir()) == []


def test_without_a_place_for_the_folder_each_worker_fetches(
    dataset: ShardDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert flat(labels(ConcurrentDataLoader(dataset, 50, num_workers=2))) == list(range(NUM_SAMPLES))
    assert "each worker fetches all shards it needs" in caplog.text


# -- statistics --------------------------------------------------------------------------------------------------------


def test_statistics_are_those_of_all_processes(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16, transform=recipes.enlarge, num_workers=2)
    before = loader.stats.fetch.num_gets
    list(loader)
    stats = loader.stats
    assert (stats.num_batches, stats.num_samples) == (13, NUM_SAMPLES)
    assert min(stats.read_s, stats.transform_s, stats.collate_s) > 0
    assert stats.cache.num_misses == len(dataset.manifest.shards)
    assert stats.fetch.num_gets - before >= len(dataset.manifest.shards)
    assert stats.fetch.in_flight == 0
    list(loader)
    assert loader.stats.cache.num_misses == 2 * stats.cache.num_misses


def test_a_wait_is_divided_by_what_the_worker_did(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16, transform=recipes.compute, num_workers=1)
    list(loader)
    stats = loader.stats
    assert stats.wait_transform_s > 0.25 * stats.transform_s
    parts = stats.wait_store_s, stats.wait_disk_s, stats.wait_decode_s, stats.wait_transform_s, stats.wait_collate_s
    assert sum(parts) + stats.wait_other_s == pytest.approx(stats.wait_s)


def test_a_worker_says_what_it_is_at(dataset: ShardDataset, tmp_path: Path) -> None:
    never_return = recipes.NeverReturn(tmp_path)
    loader = ConcurrentDataLoader(dataset, 16, transform=never_return, num_workers=1, prefetch_batches=1)
    at_work = tmp_path / "at work"
    os.mkfifo(at_work)
    batches = loader._batches(0, 0)
    batches.start()
    (worker,) = multiprocessing.active_children()
    assert at_work.read_text() == "at work"
    at = batches.batch_status()
    assert at.cause == "transform"
    assert "is up to worker 0, where it" in at.what
    for _ in range(2):  # asked again only after the reply
        batches.pipeline_status()
    with pytest.raises(TimeoutError):
        batches.take(0.5)
    assert batches.pipeline_status().num_busy_threads > 0  # reported without a batch
    os.kill(worker.pid or 0, signal.SIGSTOP)
    state = Path(f"/proc/{worker.pid}/stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)  # the signal returns before the process has stopped
    batches.batch_status()  # takes an answer that was under way
    assert "does not reply" in batches.batch_status().what
    os.kill(worker.pid or 0, signal.SIGCONT)
    with pytest.raises(TimeoutError):
        batches.take(0.01)  # and what it answers late is no batch
    batches.stop(0.1)
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_starting_is_said_to(dataset: ShardDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concurrent_loader.workers.workers._ANSWER_S", 0.0)
    batches = ConcurrentDataLoader(dataset, 16, num_workers=1)._batches(0, 0)
    assert batches.batch_status() == BatchStatus()
    batches.start()
    assert "is still starting" in batches.batch_status().what
    batches.stop()
    batches.stop()
    assert batches.batch_status() == BatchStatus()


def test_a_worker_that_never_returns(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16, transform=recipes.never_return, num_workers=1, timeout=0.1)
    with pytest.raises(LoaderTimeout, match="worker 0"):
        list(loader)
    assert multiprocessing.active_children() == []


def test_batches_that_come_while_a_worker_is_asked_are_kept(dataset: ShardDataset) -> None:
    batches = ConcurrentDataLoader(dataset, 16, num_workers=1, prefetch_batches=20)._batches(0, 0)
    batches.start()
    for number in range(13):
        batches.batch_status()
        assert batches.take()["label"].tolist() == list(range(16 * number, min(NUM_SAMPLES, 16 * number + 16)))
    batches.batch_status()
    assert batches.take() is END
    batches.stop()


@pytest.mark.processes
def test_an_error_of_the_order_in_a_worker_is_that_error(dataset: ShardDataset) -> None:
    view = dataset.subset(range(60))
    loader = ConcurrentDataLoader(view, 8, shuffle=True, num_workers=1, sampling=Weighted(recipes.fails_in_workers))
    with pytest.raises(RuntimeError, match="no weights here"):
        list(loader)


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transform": lambda sample: sample}, "transform cannot be sent to a worker"),
        ({"transform": recipes.closure()}, "lambda"),
        ({"collate_fn": lambda samples: samples}, "collate_fn cannot be sent"),
        ({"decode": {"data": lambda data: data}}, "decode cannot be sent"),
        ({"worker_init_fn": lambda worker: None}, "worker_init_fn cannot be sent"),
        ({"shuffle": True, "sampling": Weighted(lambda epoch: np.ones(NUM_SAMPLES))}, "sampling cannot be sent"),
        ({"batching": recipes.local_sampler()}, "batching cannot be sent"),
        ({"multiprocessing_context": "fork"}, "cannot be forked"),
        ({"multiprocessing_context": "teleport"}, "unknown start method"),
        ({"multiprocessing_context": 3}, "a start method or a context"),
        ({"num_workers": -1}, "non-negative"),
        ({"num_workers": True}, "non-negative"),
        ({"num_workers": 0, "persistent_workers": True}, "pass num_workers"),
        ({"num_workers": 0, "multiprocessing_context": "spawn"}, "pass num_workers"),
    ],
)
def test_refuses_what_cannot_work_before_anything_starts(
    dataset: ShardDataset, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ConcurrentDataLoader(dataset, 8, **{"num_workers": 2, **options})
    assert multiprocessing.active_children() == []


def test_refuses_a_data_set_in_memory() -> None:
    write("memory://workers-cannot-see-this", num_samples=3)
    with (
        ShardDataset("memory://workers-cannot-see-this") as dataset,
        pytest.raises(ConfigurationError, match="workers cannot read a dataset in this"),
    ):
        ConcurrentDataLoader(dataset, 8, num_workers=1)


def test_each_worker_is_initialised(dataset: ShardDataset, tmp_path: Path) -> None:
    loader = ConcurrentDataLoader(dataset, 100, num_workers=2, worker_init_fn=recipes.Begin(tmp_path))
    assert len(list(loader)) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"worker-0", "worker-1"}


def test_persistent_workers_are_kept(dataset: ShardDataset, tmp_path: Path) -> None:
    kept, fresh = tmp_path / "kept", tmp_path / "fresh"
    for folder, persistent in ((kept, True), (fresh, False)):
        folder.mkdir()
        loader = ConcurrentDataLoader(
            dataset, 20, shuffle=True, num_workers=2, transform=recipes.Touch(folder), persistent_workers=persistent
        )
        first, second = labels(loader), labels(loader)
        assert first != second
        assert sorted(flat(first)) == sorted(flat(second)) == list(range(NUM_SAMPLES))
        assert len(multiprocessing.active_children()) == (2 if persistent else 0)
        del loader
        gc.collect()
        assert multiprocessing.active_children() == []
    assert len(list(kept.iterdir())) == 2
    assert len(list(fresh.iterdir())) == 4


def test_persistent_workers_go_on_after_a_break_and_an_error(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(
        dataset, 16, num_workers=2, transform=recipes.fail_at_77, persistent_workers=True, prefetch_batches=8
    )
    whole = [list(range(start, start + 16)) for start in range(0, 64, 16)]
    for _ in range(3):
        assert labels(islice(iter(loader), 2)) == whole[:2]
        seen = []
        with pytest.raises(TransformError):
            for batch in loader:
                seen.append(batch["label"].tolist())
        assert seen == whole
        assert len(multiprocessing.active_children()) == 2


def test_several_iterations_at_once(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 32, num_workers=1, persistent_workers=True)
    one, two = iter(loader), iter(loader)
    pairs = list(zip(one, two, strict=True))
    assert labels(first for first, _ in pairs) == labels(second for _, second in pairs)
    assert len(multiprocessing.active_children()) == 1


# -- failures ----------------------------------------------------------------------------------------------------------


def test_an_error_of_the_transform_comes_in_its_place(dataset: ShardDataset) -> None:
    seen = []
    with pytest.raises(TransformError, match="ValueError: seventy-seven") as raised:
        for batch in ConcurrentDataLoader(dataset, 16, num_workers=3, transform=recipes.fail_at_77):
            seen += batch["label"].tolist()
    assert seen == list(range(64))
    assert raised.value.sample == 77
    cause = str(raised.value.__cause__)
    assert "in worker 1" in cause
    assert 'raise ValueError("seventy-seven")' in cause
    assert multiprocessing.active_children() == []


def test_an_error_that_cannot_be_pickled_comes_in_words(dataset: ShardDataset) -> None:
    with pytest.raises(LoaderError, match="Odd: 3: so it is") as raised:
        next(iter(ConcurrentDataLoader(dataset, 16, num_workers=1, collate_fn=recipes.fail_oddly)))
    assert "fail_oddly" in str(raised.value.__cause__)


def test_a_batch_that_cannot_be_pickled_is_an_error(dataset: ShardDataset) -> None:
    with pytest.raises(CollateError, match="cannot be sent"):
        next(iter(ConcurrentDataLoader(dataset, 16, num_workers=1, collate_fn=recipes.unpicklable)))


def test_an_error_of_the_storage_names_what_is_missing(tmp_path: Path) -> None:
    write(str(tmp_path / "dataset"))
    with ShardDataset(str(tmp_path / "dataset")) as dataset:
        key = dataset.manifest.shards[5].key
        (tmp_path / "dataset" / key).unlink()
        with pytest.raises(NotFound) as raised:
            list(ConcurrentDataLoader(dataset, 16, num_workers=2))
        assert raised.value.key == key
        assert raised.value.sample is not None


def test_a_worker_that_does_not_begin(dataset: ShardDataset) -> None:
    with pytest.raises(LoaderError, match=r"worker_init_fn failed: RuntimeError: worker 0 does not want to"):
        list(ConcurrentDataLoader(dataset, 16, num_workers=2, worker_init_fn=recipes.Begin(None)))
    with pytest.raises(ConfigurationError, match="cannot be unpickled in a worker"):
        list(ConcurrentDataLoader(dataset, 16, num_workers=1, transform=recipes.NotHere()))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("how", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (None, None)])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_worker_that_dies(dataset: ShardDataset, how: int | None, name: str | None, persistent: bool) -> None:
    loader = ConcurrentDataLoader(
        dataset, 16, num_workers=2, transform=recipes.DieAt(20, how), persistent_workers=persistent
    )
    seen = []
    with pytest.raises(WorkerDied) as raised:
        for batch in loader:
            seen += batch["label"].tolist()
    assert seen == list(range(16))
    assert (raised.value.worker, raised.value.signal) == (1, name)
    assert raised.value.exit_status == (7 if how is None else None)
    assert f"pid={raised.value.pid}" in str(raised.value)
    assert multiprocessing.active_children() == []


def test_an_idle_worker_that_is_killed_is_replaced(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16, num_workers=2, persistent_workers=True)
    first = labels(loader)
    victim = multiprocessing.active_children()[0]
    victim.kill()
    victim.join()
    assert labels(loader) == first
    assert len(multiprocessing.active_children()) == 2


def test_a_worker_killed_while_its_batches_wait(dataset: ShardDataset) -> None:
    """What it had sent counts; then comes the error."""
    loader = ConcurrentDataLoader(dataset, 16, num_workers=1, prefetch_batches=2)
    batches = iter(loader)
    assert next(batches)["label"].tolist() == list(range(16))
    (worker,) = multiprocessing.active_children()
    worker.kill()
    worker.join()
    with pytest.raises(WorkerDied, match="memory"):
        for number, batch in enumerate(batches, start=1):
            assert batch["label"].tolist() == list(range(16 * number, 16 * number + 16))


# -- nothing is left ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("persistent", [True, False])
def test_nothing_is_left_behind(url: str, private_folders: Path, persistent: bool) -> None:
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(dataset, 16, num_workers=2, persistent_workers=persistent)
        list(loader)
        for _ in loader:
            break
        with pytest.raises(RuntimeError, match="the body"):
            for _ in loader:
                raise RuntimeError("the body")
        with pytest.raises(KeyboardInterrupt):
            for _ in loader:
                signal.raise_signal(signal.SIGINT)
    assert multiprocessing.active_children() == []
    assert list(private_folders.iterdir()) == []


def test_many_batches_need_no_descriptors(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 40, num_workers=1, transform=recipes.enlarge, persistent_workers=True)
    held = list(loader)
    before = len(os.listdir("/proc/self/fd"))
    held += list(loader)
    assert len(os.listdir("/proc/self/fd")) == before
    assert [batch["picture"][0, 0, 0, 0].item() for batch in held[:6]] == [0, 40, 80, 120, 160, 200]


@pytest.mark.usefixtures("no_leaks")
def test_closing_the_data_set_ends_the_workers(url: str, private_folders: Path) -> None:
    dataset = ShardDataset(url)
    loader = ConcurrentDataLoader(dataset, 16, num_workers=2)
    batches = iter(loader)
    next(batches)
    dataset.close()
    assert multiprocessing.active_children() == []
    with pytest.raises(LoaderError, match="closed while a loader was reading"):
        list(batches)
    assert list(private_folders.iterdir()) == []
    with pytest.raises(StoreClosed):
        list(loader)


@pytest.mark.usefixtures("no_leaks")
def test_closing_the_data_set_ends_idle_workers(url: str, private_folders: Path) -> None:
    dataset = ShardDataset(url)
    loader = ConcurrentDataLoader(dataset, 64, num_workers=2, persistent_workers=True)
    list(loader)
    with leaving_nothing():
        dataset.close()
        assert multiprocessing.active_children() == []
        assert list(private_folders.iterdir()) == []
    with pytest.raises(StoreClosed):
        list(loader)


def test_who_waits_for_a_worker_hears_of_its_death(dataset: ShardDataset) -> None:
    batches = ConcurrentDataLoader(dataset, 16, num_workers=1, transform=recipes.never_return)._batches(0, 0)
    batches.start()
    outcomes: list[Any] = []
    waiting = threading.Thread(target=lambda: outcomes.append(batches.take()))
    waiting.start()
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid or 0, signal.SIGKILL)
    waiting.join()
    assert isinstance(outcomes[0], Failure)
    assert isinstance(outcomes[0].error, WorkerDied)
    batches.stop()
    batches.stop()


def test_a_wait_may_have_an_end(dataset: ShardDataset) -> None:
    batches = ConcurrentDataLoader(dataset, 203, num_workers=1)._batches(0, 0)
    batches.start()
    try:
        with pytest.raises(TimeoutError):
            batches.take(0.0)
        assert batches.take(60.0)["label"].tolist() == list(range(203))
        assert batches.take() is END
    finally:
        batches.stop()


def test_a_forked_child_leaves_the_workers_alone(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16, num_workers=2)
    batches = iter(loader)
    seen = next(batches)["label"].tolist()
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except StoreClosed as error:
            os._exit(0 if "again in the child" in str(error) else 4)
        os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert seen + flat(labels(batches)) == list(range(NUM_SAMPLES))
