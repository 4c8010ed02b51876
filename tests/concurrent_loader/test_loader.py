from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from concurrent_loader import Batch, ConcurrentDataLoader, ShardDataset
from concurrent_loader.datasets.shard_source import ShardSource
from concurrent_loader.errors import DecodeError, LoaderError, LoaderStateError, TransformError
from concurrent_loader.pipeline.thread_pool import DecodeThreads
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError, NotFound
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.stores import open_store

MakePayload = Callable[[int], bytes]


def labels(loader: ConcurrentDataLoader) -> list[list[int]]:
    return [batch["label"].tolist() for batch in loader]


def delete(url: str, key: str) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            await store.delete(key)

    with LoopThread() as loop:
        loop.run(run())


# -- what is delivered -------------------------------------------------------------------------------------------------


def test_delivers_every_sample_once_with_the_right_bytes(dataset: ShardDataset, make_payload: MakePayload) -> None:
    loader = ConcurrentDataLoader(dataset, batch_size=16, shuffle=True, seed=3)
    seen = []
    for batch in loader:
        assert isinstance(batch, Batch)
        assert batch["label"].dtype == torch.int64
        assert batch["box"].dtype == torch.float32
        assert batch["box"].shape == (len(batch["label"]), 4)
        assert batch["label"].tolist() == batch.sample_ids.tolist()
        for data, label, name, box in zip(
            batch["data"], batch["label"].tolist(), batch["name"], batch["box"], strict=True
        ):
            assert bytes(data) == make_payload(label)
            assert name == f"sample {label}"
            assert box[0] == label
            seen.append(label)
    assert sorted(seen) == list(range(203))
    assert seen != sorted(seen)


def test_without_shuffling_the_order_is_that_of_writing(dataset: ShardDataset) -> None:
    batches = labels(ConcurrentDataLoader(dataset, batch_size=50))
    assert batches == [list(range(start, min(203, start + 50))) for start in range(0, 203, 50)]


@pytest.mark.slow
def test_the_order_depends_on_seed_and_epoch_alone(url: str, tmp_path: Path) -> None:
    def run(*, seed: int = 1, epoch: int = 0, cache_dir: Path | None = None, **options: Any) -> list[list[int]]:
        with ShardDataset(url, cache_dir=cache_dir) as dataset:
            loader = ConcurrentDataLoader(dataset, 16, shuffle=True, seed=seed, **options)
            loader.set_epoch(epoch)
            return labels(loader)

    first = run()
    assert first == run(num_threads=1, prefetch_batches=1, prefetch_bytes=0)
    assert first == run(num_threads=7, prefetch_batches=20)
    assert first == run(cache_dir=tmp_path) == run(cache_dir=tmp_path)
    assert first != run(seed=2)
    assert first != run(epoch=1)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_ranks_together_make_the_same_global_batches(dataset: ShardDataset, world_size: int) -> None:
    whole = labels(ConcurrentDataLoader(dataset, 16, shuffle=True, drop_last=True))
    ranks = [
        labels(
            ConcurrentDataLoader(
                dataset, 16 // world_size, shuffle=True, drop_last=True, rank=rank, world_size=world_size
            )
        )
        for rank in range(world_size)
    ]
    assert [[label for part in step for label in part] for step in zip(*ranks, strict=True)] == whole


@pytest.mark.parametrize(("last_batch", "sizes"), [("short", [64, 64, 64, 11]), ("drop", [64] * 3), ("pad", [64] * 4)])
def test_the_last_batch_is_as_chosen(dataset: ShardDataset, last_batch: str, sizes: list[int]) -> None:
    loader = ConcurrentDataLoader(dataset, 64, shuffle=True, last_batch=last_batch)
    batches = list(loader)
    assert [len(batch["label"]) for batch in batches] == sizes
    assert len(loader) == len(sizes)
    assert batches[-1].num_padded == (53 if last_batch == "pad" else 0)


@pytest.mark.parametrize("last_batch", ["short", "drop", "pad"])
def test_all_ranks_have_the_same_number_of_steps(dataset: ShardDataset, last_batch: str) -> None:
    """203 samples in global batches of 20 leave three for four ranks: one gets none of them."""
    ranks = [
        list(ConcurrentDataLoader(dataset, 5, shuffle=True, last_batch=last_batch, rank=rank, world_size=4))
        for rank in range(4)
    ]
    assert {len(batches) for batches in ranks} == {10 if last_batch == "drop" else 11}
    ends = [(len(batches[-1]["label"]), batches[-1].num_padded) for batches in ranks]
    assert (
        sorted(ends)
        == {"short": [(1, 0)] * 3 + [(1, 1)], "drop": [(5, 0)] * 4, "pad": [(5, 4)] * 3 + [(5, 5)]}[last_batch]
    )
    real = [s for rank in ranks for b in rank for s in b.sample_ids[: len(b.sample_ids) - b.num_padded].tolist()]
    assert sorted(real) == sorted(set(real))
    assert len(real) == (200 if last_batch == "drop" else 203)


def test_an_empty_data_set_has_no_batches() -> None:
    with ShardWriter("memory://empty-data-set", columns={"label": "int64"}, allow_empty=True):
        pass
    with ShardDataset("memory://empty-data-set") as dataset:
        loader = ConcurrentDataLoader(dataset, 4, shuffle=True)
        assert (len(dataset), len(loader), list(loader)) == (0, 0, [])


def test_images_are_decoded_transformed_and_stacked(image_url: str) -> None:
    with ShardDataset(image_url) as dataset:

        def crop(sample: dict[str, Any]) -> dict[str, Any]:
            return {"image": sample["image"][:, :16, :16].float() / 255, "label": sample["label"]}

        for batch in ConcurrentDataLoader(dataset, 8, decode={"image": "rgb"}):
            assert batch["image"].shape == (8, 3, 32, 48)
            assert batch["image"].dtype == torch.uint8
        for batch in ConcurrentDataLoader(dataset, 8, decode={"image": "gray"}, transform=crop):
            assert batch["image"].shape == (8, 1, 16, 16)
            assert batch["image"].dtype == torch.float32
            assert batch["label"].dtype == torch.int64


def test_a_transform_does_not_change_what_it_does_not_touch(dataset: ShardDataset) -> None:
    plain, transformed = (
        next(iter(ConcurrentDataLoader(dataset, 10, transform=transform)))
        for transform in (None, lambda sample: sample)
    )
    assert {name: getattr(values, "dtype", None) for name, values in plain.items()} == {
        name: getattr(values, "dtype", None) for name, values in transformed.items()
    }
    assert torch.equal(plain["box"], transformed["box"])


def test_a_callable_may_decode_and_a_collate_fn_may_collate(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(
        dataset,
        10,
        decode={"data": lambda data: torch.tensor(len(data))},
        collate_fn=lambda samples: [(sample["label"], int(sample["data"])) for sample in samples],
    )
    assert [pair for batch in loader for pair in batch] == [(n, 400 + n) for n in range(203)]


# -- epochs and states -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_iteration_is_a_new_epoch(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16, shuffle=True)
    first, second = labels(loader), labels(loader)
    assert first != second
    loader.set_epoch(0)
    assert labels(loader) == first
    assert labels(loader) == second


def test_an_iterator_that_is_never_asked_uses_up_no_epoch(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16, shuffle=True)
    iter(loader)
    first = labels(loader)
    loader.set_epoch(0)
    iter(loader)
    assert labels(loader) == first


def test_scripts_may_set_the_epoch_of_a_sampler(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16, shuffle=True)
    list(loader)
    second = labels(loader)
    loader.sampler.set_epoch(1)
    assert labels(loader) == second


def test_breaking_off_also_ends_the_epoch(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16, shuffle=True)
    firsts = [next(iter(loader))["label"].tolist() for _ in range(3)]
    assert len({tuple(first) for first in firsts}) == 3


@pytest.mark.slow
def test_resumes_at_every_step(dataset: ShardDataset) -> None:
    reference = ConcurrentDataLoader(dataset, 16, shuffle=True, seed=9)
    epochs = [labels(reference), labels(reference)]
    flat = [batch for epoch in epochs for batch in epoch]
    loader = ConcurrentDataLoader(dataset, 16, shuffle=True, seed=9)
    states = [loader.state_dict()]
    for _ in range(2):
        for _ in loader:
            states.append(loader.state_dict())
    assert len(states) == len(flat) + 1
    for number, state in enumerate(states[:-1]):
        resumed = ConcurrentDataLoader(dataset, 16, shuffle=True, seed=9)
        resumed.load_state_dict(state)
        # The rest of an epoch whose last batch was delivered is empty; the next batch is then the next epoch's first.
        following = [batch["label"].tolist() for _ in range(2) for batch in resumed]
        assert following[: len(flat) - number] == flat[number : number + len(following)]
        assert following[0] == flat[number]
    resumed = ConcurrentDataLoader(dataset, 16, shuffle=True, seed=9)
    resumed.load_state_dict(states[5])
    resumed.set_epoch(0)  # as a training loop does that counts epochs itself
    assert labels(resumed) + labels(resumed) == flat[5:]


def test_a_state_is_small_and_fits_any_number_of_ranks(dataset: ShardDataset) -> None:
    one = ConcurrentDataLoader(dataset, 16, shuffle=True)
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    assert all(isinstance(value, int) for value in state.values())
    following = next(iterator)["label"].tolist()
    parts = []
    for rank in range(4):
        part = ConcurrentDataLoader(dataset, 4, shuffle=True, rank=rank, world_size=4)
        part.load_state_dict(state)
        parts += next(iter(part))["label"].tolist()
    assert parts == following


def test_a_state_of_something_else_is_refused(dataset: ShardDataset, image_url: str) -> None:
    state = ConcurrentDataLoader(dataset, 16, shuffle=True).state_dict()
    with pytest.raises(LoaderStateError):
        ConcurrentDataLoader(dataset, 17, shuffle=True).load_state_dict(state)
    with ShardDataset(image_url) as other, pytest.raises(LoaderStateError):
        ConcurrentDataLoader(other, 16, shuffle=True).load_state_dict(state)


def test_two_iterators_at_once_do_not_disturb_each_other(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16)
    pairs = list(zip(iter(loader), iter(loader), strict=True))
    assert all(first["label"].tolist() == second["label"].tolist() for first, second in pairs)
    assert len(pairs) == 13


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_no_more_batches_are_made_ahead_than_allowed(dataset: ShardDataset) -> None:
    made = threading.Semaphore(0)
    count = 0
    lock = threading.Lock()

    def counted(sample: dict[str, Any]) -> dict[str, Any]:
        nonlocal count
        with lock:
            count += 1
        made.release()
        return sample

    iterator = iter(ConcurrentDataLoader(dataset, 10, transform=counted, prefetch_batches=2))
    next(iterator)
    for _ in range(30):  # the one taken, and two ahead
        assert made.acquire(timeout=10)
    assert not made.acquire(timeout=0.2)
    assert count == 30


def test_a_thread_ends_a_batch_before_it_begins_the_next(dataset: ShardDataset) -> None:
    events: list[str] = []

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        events.append(f"sample of {sample['label'] // 50}")
        return sample

    def collate_fn(samples: list[dict[str, Any]]) -> int:
        events.append(f"batch {samples[0]['label'] // 50}")
        return len(samples)

    loader = ConcurrentDataLoader(dataset, 50, num_threads=1, transform=transform, collate_fn=collate_fn)
    assert list(loader) == [50, 50, 50, 50, 3]
    begun = list(dict.fromkeys(event for event in events if event.startswith("sample")))
    steps = [event.removeprefix("sample of ") for event in begun]  # in which order they come is the shards' affair
    assert sorted(steps) == [str(step) for step in range(5)]
    assert list(dict.fromkeys(events)) == [f"{what} {step}" for step in steps for what in ("sample of", "batch")]


def test_a_batch_whose_shard_is_late_is_made_before_later_ones_that_wait(
    dataset: ShardDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, submit_with_priority = ShardSource.acquire, DecodeThreads.submit_with_priority
    turns: set[int] = set()
    inside, all_wait = threading.Event(), threading.Event()
    made: list[int] = []

    async def late(source: ShardSource, unit: int) -> Any:
        shard = await acquire(source, unit)
        while unit == 0 and not (inside.is_set() and turns >= {1, 2}):
            await asyncio.sleep(0.001)
        return shard

    def noted(threads: DecodeThreads, turn: int, call: Callable[[], Any]) -> Future[Any]:
        future = submit_with_priority(threads, turn, call)
        turns.add(turn)
        if turns >= {0, 1, 2}:
            all_wait.set()
        return future

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        step = int(sample["label"]) // 40
        inside.set()
        if step not in made:
            assert made or all_wait.wait(10)  # the only thread is busy until the others wait for it
            made.append(step)
        return sample

    monkeypatch.setattr(ShardSource, "acquire", late)
    monkeypatch.setattr(DecodeThreads, "submit_with_priority", noted)
    monkeypatch.setattr("concurrent_loader.pipeline.shard_leases._HEAD_START_S", 0.01)
    loader = ConcurrentDataLoader(dataset, 40, num_threads=1, prefetch_batches=3, transform=transform)
    assert labels(loader)[0] == list(range(40))
    assert made[0] in (1, 2)
    assert made[1] == 0


def test_shards_that_exceed_every_budget_still_arrive(url: str) -> None:
    with ShardDataset(url, bytes_in_flight=1, in_flight=1) as dataset:
        loader = ConcurrentDataLoader(dataset, 16, shuffle=True, prefetch_bytes=0, prefetch_batches=1, num_threads=1)
        assert sum(len(batch["label"]) for batch in loader) == 203


def test_a_small_window_lets_go_of_shards(url: str) -> None:
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(
            dataset, 4, shuffle=True, groups=1, shuffle_window=10, prefetch_bytes="8KiB", prefetch_batches=1
        )
        most = 0
        for _ in loader:
            most = max(most, len(dataset.reader.cache._open))
        assert most <= 10
        assert dataset.fetch_stats.num_gets <= len(dataset.manifest.shards) + 1  # each once, and the manifest
        assert dataset.reader.cache._open == {}
        assert dataset.reader.cache._pins == {}


# -- how it ends -------------------------------------------------------------------------------------------------------


def test_breaking_off_leaves_nothing(url: str, tmp_path: Path, baseline: None) -> None:
    with ShardDataset(url, cache_dir=tmp_path) as dataset:
        for _ in ConcurrentDataLoader(dataset, 4, shuffle=True):
            break
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]
        assert dataset.reader.cache._pins == {}


def test_an_exception_in_the_body_leaves_nothing(url: str, baseline: None) -> None:
    def train(dataset: ShardDataset) -> None:
        for _ in ConcurrentDataLoader(dataset, 4, shuffle=True):
            raise RuntimeError("out of memory")

    with ShardDataset(url) as dataset:
        with pytest.raises(RuntimeError, match="out of memory"):
            train(dataset)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_a_failing_transform_names_the_sample_after_the_batches_before_it(dataset: ShardDataset) -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["label"] == 57:
            raise ZeroDivisionError("oh")
        return sample

    arrived = []
    with pytest.raises(TransformError, match="57") as caught:
        for batch in ConcurrentDataLoader(dataset, 10, transform=fail, num_threads=4):
            arrived.append(batch["label"].tolist())
    assert len(arrived) == 5
    assert caught.value.sample == 57
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_broken_image_names_sample_and_column(make_jpeg: Callable[..., bytes]) -> None:
    url = "memory://broken-image"
    with ShardWriter(url, columns={"image": "jpeg"}, overwrite=True) as writer:
        for number in range(9):
            data = make_jpeg(number)
            writer.write({"image": data[:60] if number == 5 else data})
    with ShardDataset(url) as dataset, pytest.raises(DecodeError) as caught:
        list(ConcurrentDataLoader(dataset, 3, decode={"image": "rgb"}))
    assert (caught.value.sample, caught.value.column) == (5, "image")


@pytest.mark.processes
@pytest.mark.parametrize("options", [{}, {"transform": dict}, {"num_workers": 1}], ids=["", "transform", "worker"])
def test_images_of_different_sizes_are_a_list(options: Any, make_jpeg: Callable[..., bytes], tmp_path: Path) -> None:
    url = str(tmp_path / "sizes")
    with ShardWriter(url, columns={"image": "jpeg"}) as writer:
        for number, size in enumerate([(48, 32), (64, 64), (48, 32), (48, 32)]):
            writer.write({"image": make_jpeg(number, size=size)})
    with ShardDataset(url) as dataset:
        mixed, alike = ConcurrentDataLoader(dataset, 2, decode={"image": "rgb"}, **options)
    assert [tuple(image.shape) for image in mixed["image"]] == [(3, 32, 48), (3, 64, 64)]
    assert alike["image"].shape == (2, 3, 32, 48)
    moved = mixed.to("meta")["image"]
    assert [image.device.type for image in moved] == ["meta", "meta"]


def test_what_a_function_makes_of_different_shapes_is_a_list(make_jpeg: Callable[..., bytes]) -> None:
    url = "memory://different-sizes"
    with ShardWriter(url, columns={"image": "jpeg"}, overwrite=True) as writer:
        writer.write({"image": make_jpeg(0)})
        writer.write({"image": make_jpeg(1)})
    with ShardDataset(url) as dataset:
        (batch,) = ConcurrentDataLoader(dataset, 2, decode={"image": lambda data: torch.zeros(len(data))})
    assert [value.shape for value in batch["image"]] == [(len(make_jpeg(n)),) for n in range(2)]


def test_a_shard_that_is_gone_is_an_error_in_its_place(url: str, baseline: None) -> None:
    with ShardDataset(url) as dataset:
        key = dataset.manifest.shards[10].key
        delete(url, key)
        arrived = 0
        with pytest.raises(NotFound) as caught:
            for _ in ConcurrentDataLoader(dataset, 1):
                arrived += 1
        assert arrived == sum(shard.num_samples for shard in dataset.manifest.shards[:10])
        assert caught.value.key == key


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_cache_file_that_decays_is_healed_on_the_way(
    url: str, tmp_path: Path, make_payload: MakePayload, num_threads: int
) -> None:
    with ShardDataset(url, cache_dir=tmp_path) as dataset:
        list(ConcurrentDataLoader(dataset, 16))
        for path in tmp_path.glob("*.shard"):
            data = bytearray(path.read_bytes())
            data[50] ^= 0xFF
            path.write_bytes(data)
        for batch in ConcurrentDataLoader(dataset, 16, num_threads=num_threads):
            for data, label in zip(batch["data"], batch["label"].tolist(), strict=True):
                assert bytes(data) == make_payload(label)
        assert dataset.cache_stats.num_quarantined == len(dataset.manifest.shards)


def test_closing_the_data_set_under_a_loader_is_an_error_not_a_hang(url: str) -> None:
    dataset = ShardDataset(url)
    iterator = iter(ConcurrentDataLoader(dataset, 1, prefetch_batches=1))
    next(iterator)
    dataset.close()
    with pytest.raises(LoaderError, match="closed"):
        for _ in iterator:
            pass


def test_closing_under_a_loader_waits_for_its_threads(url: str, tmp_path: Path, baseline: None) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        inside.set()
        assert go.wait(10)
        return sample

    dataset = ShardDataset(url, cache_dir=tmp_path)
    loader = ConcurrentDataLoader(dataset, 8, transform=slow, num_threads=1)
    failures: list[LoaderError] = []

    def consume() -> None:
        try:
            next(iter(loader))
        except LoaderError as error:
            failures.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert inside.wait(10)
    closing = threading.Thread(target=dataset.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()  # a thread is still at work on a shard
    go.set()
    for thread in (closing, consumer):
        thread.join(10)
        assert not thread.is_alive()
    assert len(failures) == 1


def test_the_second_epoch_comes_from_the_cache(url: str, tmp_path: Path) -> None:
    with ShardDataset(url, cache_dir=tmp_path) as dataset:
        loader = ConcurrentDataLoader(dataset, 16, shuffle=True)
        list(loader)
        gets = dataset.fetch_stats.num_gets
        list(loader)
        assert dataset.fetch_stats.num_gets == gets


def test_statistics_say_where_the_time_went(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 16)
    list(loader)
    stats = loader.stats
    assert (stats.num_batches, stats.num_samples) == (13, 203)
    assert 0 <= stats.wait_s <= stats.total_s
    assert 0 <= stats.wait_share <= 1
    assert stats.first_batch_s > 0
    assert stats.read_s > 0
    assert stats.fetch.num_gets > 0
    assert stats.to_dict()["num_samples"] == 203


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"num_threads": 0},
        {"prefetch_batches": -1},
        {"rank": 2, "world_size": 2},
        {"rank": 0},
        {"last_batch": "keep"},
        {"drop_last": True, "last_batch": "pad"},
        {"decode": {"image": "rgb"}},
        {"decode": {"label": "rgb"}},
        {"decode": {"data": "cmyk"}},
        {"prefetch_bytes": "many"},
        {"shuffle": True, "shuffle_window": 0},
        {"groups": 0, "shuffle": True},
    ],
)
def test_what_cannot_work_is_refused_at_once(dataset: ShardDataset, options: dict[str, Any]) -> None:
    gets = dataset.fetch_stats.num_gets
    with pytest.raises(ConfigurationError):
        ConcurrentDataLoader(dataset, **options)
    assert dataset.fetch_stats.num_gets == gets


def test_rank_and_world_size_come_from_torch_distributed(dataset: ShardDataset, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        loader = ConcurrentDataLoader(dataset, 16)
        assert (loader.rank, loader.world_size) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()


def test_a_loader_built_before_torch_distributed_is_refused(
    dataset: ShardDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, placed = ConcurrentDataLoader(dataset, 8), ConcurrentDataLoader(dataset, 8, rank=0, world_size=1)
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    with pytest.raises(ConfigurationError, match=r"before torch\.distributed was initialized"):
        iter(early)
    iter(placed)
    iter(ConcurrentDataLoader(dataset, 8))


@pytest.mark.slow
def test_random_configurations_deliver_everything_once(dataset: ShardDataset) -> None:
    numbers = np.random.default_rng(5)
    for _ in range(25):
        options: dict[str, Any] = {
            "batch_size": int(numbers.integers(1, 80)),
            "shuffle": bool(numbers.integers(2)),
            "num_threads": int(numbers.integers(1, 5)),
            "prefetch_batches": int(numbers.integers(1, 6)),
            "prefetch_bytes": int(numbers.integers(0, 50_000)),
            "shuffle_window": int(numbers.integers(1, 300)),
            "groups": int(numbers.integers(1, 9)),
        }
        loader = ConcurrentDataLoader(dataset, **options)
        batches = labels(loader)
        assert len(batches) == len(loader), options
        assert sorted(label for batch in batches for label in batch) == list(range(203)), options
