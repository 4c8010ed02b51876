from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, ObjectDataset
from concurrent_loader.errors import DecodeError, LoaderStateError, TransformError
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.cache.folder import CacheFolder
from concurrent_loader.storage.cache.maintenance import collect_garbage, inspect_cache, verify_cache
from concurrent_loader.storage.errors import (
    ConfigurationError,
    DatasetChanged,
    NotFound,
    SchemaError,
    StorageError,
    StoreClosed,
)
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.stores import Store, open_store

MakeJpeg = Callable[..., bytes]

CLASSES = ("ant", "bee", "cow")
N = 60


def key_of(number: int) -> str:
    return f"{CLASSES[number % 3]}/{number:04d}.JPG"


def on_store(url: str, call: Callable[[Store], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with open_store(url, **options) as store:
            await call(store)

    with LoopThread() as loop:
        loop.run(run())


def fill(url: str, make_jpeg: MakeJpeg, **options: Any) -> str:
    async def put(store: Store) -> None:
        await asyncio.gather(*(store.put(key_of(number), make_jpeg(number)) for number in range(N)))
        await store.put("ant/notes.txt", b"no image")
        await store.put("ant/._0001.jpg", b"what macOS leaves behind")

    on_store(url, put, **options)
    return url


@pytest.fixture
def image_folder(make_jpeg: MakeJpeg) -> str:
    """Sixty JPEGs in three class folders, and two other objects, in memory."""
    return fill(f"memory://{uuid4().hex}", make_jpeg)


@pytest.fixture
def objects(image_folder: str) -> Iterator[ObjectDataset]:
    with ObjectDataset(image_folder, labels="folder") as dataset:
        yield dataset


EXPECTED = sorted(key_of(number) for number in range(N))


# -- what is in it -----------------------------------------------------------------------------------------------------


def test_has_keys_labels_and_bytes(objects: ObjectDataset, make_jpeg: MakeJpeg) -> None:
    assert len(objects) == N
    assert objects.columns == ("image", "key", "label")
    assert objects.column("key") == EXPECTED
    assert objects.metadata == {"classes": {"label": list(CLASSES)}}
    assert objects.column("label").tolist() == [CLASSES.index(key[:3]) for key in EXPECTED]
    assert objects[-1] == {"image": make_jpeg(59), "key": "cow/0059.JPG", "label": 2}
    assert [sample["key"] for sample in objects[5:50:20]] == EXPECTED[5:50:20]
    with pytest.raises(IndexError):
        objects[N]
    with pytest.raises(SchemaError, match="payload"):
        objects.column("image")
    with pytest.raises(SchemaError, match="no such column"):
        objects.column("lable")


def test_chooses_by_suffix_and_pattern(image_folder: str) -> None:
    with ObjectDataset(image_folder, column="data", column_type="bytes") as dataset:
        assert len(dataset) == N + 1
        assert dataset.columns == ("data", "key")
        assert dataset[EXPECTED.index("bee/0001.JPG") + 1]["key"] == "bee/0001.JPG"
    with ObjectDataset(image_folder, suffixes=[".txt"], column_type="bytes") as dataset:
        assert dataset[:] == [{"image": b"no image", "key": "ant/notes.txt"}]
    with ObjectDataset(image_folder, pattern="*/000?.*") as dataset:
        assert dataset.column("key") == [key for key in EXPECTED if "/000" in key]
    with ObjectDataset(image_folder, column_type="jpeg") as dataset:
        assert dataset.column("key") == [key for key in EXPECTED if key.lower().endswith(("jpg", "jpeg"))]
    with pytest.raises(NotFound, match=r"\.png"):
        ObjectDataset(image_folder, column_type="png")
    with pytest.raises(NotFound, match=r"\.wav"):
        ObjectDataset(image_folder, column_type="wav")
    with ObjectDataset(image_folder, columns=["key"]) as dataset:
        assert dataset[0] == {"key": "ant/0000.JPG"}
        assert sum(len(batch["key"]) for batch in ConcurrentDataLoader(dataset, 7, shuffle=True)) == N
        assert dataset.fetch_stats.num_gets == 0


def test_what_cannot_work_is_refused(image_folder: str, no_leaks: None) -> None:
    with pytest.raises(NotFound, match=r"found no object whose key "):
        ObjectDataset(image_folder, suffixes=[".tiff"])
    with pytest.raises(ConfigurationError, match="labels"):
        ObjectDataset(image_folder, labels="name")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="endings"):
        ObjectDataset(image_folder, suffixes=".jpg")
    with pytest.raises(SchemaError, match="column"):
        ObjectDataset(image_folder, columns=["label"])
    with pytest.raises(ConfigurationError, match="not in a class folder") as caught:
        ObjectDataset(f"{image_folder}/ant", labels="folder")
    assert caught.value.key == "0000.JPG"


# -- in the loader -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True])
def test_every_object_is_delivered_once(
    image_folder: str, make_jpeg: MakeJpeg, tmp_path: Path, cached: bool, no_leaks: None
) -> None:
    with ObjectDataset(image_folder, labels="folder", cache_dir=tmp_path if cached else None) as dataset:
        loader = ConcurrentDataLoader(dataset, 8, shuffle=True, seed=1)
        for epoch in range(2):
            gets = dataset.fetch_stats.num_gets
            seen = []
            for batch in loader:
                for data, key, label in zip(batch["image"], batch["key"], batch["label"].tolist(), strict=True):
                    assert bytes(data) == make_jpeg(int(key[4:8]))
                    assert CLASSES[label] == key[:3]
                    seen.append(key)
                assert [EXPECTED[number] for number in batch.sample_ids.tolist()] == batch["key"]
            assert sorted(seen) == EXPECTED
            assert seen != EXPECTED
            assert dataset.fetch_stats.num_gets - gets == (0 if cached and epoch else N)


def test_images_are_decoded_and_transformed(objects: ObjectDataset) -> None:
    loader = ConcurrentDataLoader(
        objects, 20, decode={"image": "rgb"}, transform=lambda s: {"x": s["image"].float(), "y": s["label"]}
    )
    for batch in loader:
        assert batch["x"].shape == (20, 3, 32, 48)
        assert batch["y"].shape == (20,)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_make_the_same_global_batches(objects: ObjectDataset, world_size: int) -> None:
    whole = [batch["key"] for batch in ConcurrentDataLoader(objects, 8, shuffle=True, drop_last=True)]
    ranks = [
        [
            batch["key"]
            for batch in ConcurrentDataLoader(
                objects, 8 // world_size, shuffle=True, drop_last=True, rank=rank, world_size=world_size
            )
        ]
        for rank in range(world_size)
    ]
    assert [[key for part in step for key in part] for step in zip(*ranks, strict=True)] == whole


def test_resumes_at_every_step(objects: ObjectDataset, image_folder: str) -> None:
    loader = ConcurrentDataLoader(objects, 16, shuffle=True)
    whole, states = [], [loader.state_dict()]
    for batch in loader:
        whole.append(batch["key"])
        states.append(loader.state_dict())
    for step, state in enumerate(states[:-1]):
        loader.load_state_dict(state)
        assert [batch["key"] for batch in loader] == whole[step:]
    with ObjectDataset(image_folder, pattern="ant/*") as other, pytest.raises(LoaderStateError):
        ConcurrentDataLoader(other, 16, shuffle=True).load_state_dict(states[1])


def test_views_of_objects(objects: ObjectDataset) -> None:
    bees = objects.filter(lambda sample: sample["label"] == 1, columns=["label"])
    gets = objects.fetch_stats.num_gets
    keys = [key for batch in ConcurrentDataLoader(bees, 4, shuffle=True) for key in batch["key"]]
    assert sorted(keys) == [key for key in EXPECTED if key.startswith("bee")]
    assert objects.fetch_stats.num_gets - gets == len(bees) == 20
    assert bees[0]["key"] == "bee/0001.JPG"
    train, val = bees.split([0.5, 0.5])
    assert sorted(train.column("key") + val.column("key")) == sorted(keys)


def test_many_small_requests_are_in_flight(make_jpeg: MakeJpeg, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred objects of 115 KB are asked for before the first answers."""
    url = f"memory://{uuid4().hex}"

    async def put(store: Store) -> None:
        for number in range(200):
            await store.put(f"{number:03d}.jpg", bytes(115_000))

    on_store(url, put)
    waiting: list[str] = []
    enough = asyncio.Event()
    with ObjectDataset(url, in_flight=128) as dataset:
        get_range = type(dataset._store).get_range

        async def slow(self: Store, key: str, *args: Any, **options: Any) -> Any:
            waiting.append(key)
            if len(waiting) >= 64:
                enough.set()
            await enough.wait()
            return await get_range(self, key, *args, **options)

        monkeypatch.setattr(type(dataset._store), "get_range", slow)
        batches = iter(ConcurrentDataLoader(dataset, 4, shuffle=True, prefetch_batches=1))
        assert len(next(batches)["key"]) == 4
        assert len(waiting) >= 64
        batches.close()  # type: ignore[attr-defined]


# -- the listing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["cache_dir", "listing"])
def test_the_listing_is_kept_and_refreshed(image_folder: str, make_jpeg: MakeJpeg, tmp_path: Path, where: str) -> None:
    options: dict[str, Any] = {where: tmp_path / "kept"}

    def keys(**more: Any) -> list[str]:
        with ObjectDataset(image_folder, **options, **more) as dataset:
            return dataset.column("key")  # type: ignore[return-value]

    assert keys() == EXPECTED

    async def add(store: Store) -> None:
        await store.put("dog/0060.jpg", make_jpeg(60))

    on_store(image_folder, add)
    assert keys() == EXPECTED
    assert keys(pattern="dog/*") == ["dog/0060.jpg"]  # another question
    assert keys(refresh=True) == [*EXPECTED, "dog/0060.jpg"]
    assert keys() == [*EXPECTED, "dog/0060.jpg"]


def test_a_damaged_listing_is_made_anew(image_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "kept"
    ObjectDataset(image_folder, listing=path).close()
    sound = path.read_bytes()
    path.write_bytes(sound[:-7] + bytes(7))
    with ObjectDataset(image_folder, listing=path) as dataset:
        assert len(dataset) == N
    assert "cannot be used" in caplog.text
    assert path.read_bytes() == sound
    assert os.listdir(tmp_path) == ["kept"]


def test_a_listing_that_cannot_be_kept_is_no_error(
    image_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with ObjectDataset(image_folder, listing=tmp_path / "file" / "kept") as dataset:
        assert len(dataset) == N
    assert "cannot be stored" in caplog.text


@pytest.mark.parametrize("cached_first", [False, True])
def test_stored_digests_find_bytes_that_changed_under_the_same_etag(
    make_jpeg: MakeJpeg, tmp_path: Path, cached_first: bool
) -> None:
    folder, listing, cache = fill(str(tmp_path / "images"), make_jpeg), tmp_path / "kept", tmp_path / "cache"
    with ObjectDataset(folder, listing=listing) as dataset:
        seen: list[tuple[int, int]] = []
        assert dataset.store_digests(lambda *now: seen.append(now)) == N
        assert seen[-1] == (N, N)
        assert dataset.store_digests() == 0
        before = dataset.fingerprint
        sound = [bytes(sample["image"]) for sample in dataset[:]]

    # The bytes of one object change, and its size and ETag (inode, size and time) do not.
    path = Path(folder) / EXPECTED[17]
    times = path.stat()
    damaged = sound[17][:-3] + b"xxx"
    if cached_first:
        with path.open("r+b") as file:
            file.write(damaged)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        # Without digests nobody notices, and the wrong bytes are cached.
        with ObjectDataset(folder, cache_dir=cache) as dataset:
            assert bytes(dataset[17]["image"]) == damaged
        with path.open("r+b") as file:
            file.write(sound[17])
    else:
        with path.open("r+b") as file:
            file.write(damaged)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    with ObjectDataset(folder, listing=listing, cache_dir=cache) as dataset:
        assert dataset.fingerprint == before
        assert bytes(dataset[16]["image"]) == sound[16]
        if cached_first:
            assert bytes(dataset[17]["image"]) == sound[17]
        else:
            with pytest.raises(DatasetChanged, match="digest") as caught:
                dataset[17]
            assert (caught.value.key, caught.value.sample) == (EXPECTED[17], 17)


def test_digests_are_stored_in_parts_and_survive_a_refresh(
    image_folder: str, make_jpeg: MakeJpeg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concurrent_loader.datasets.object_dataset._DIGESTS_AT_ONCE", 16)

    def stop(num_known: int, num_all: int) -> None:
        if num_known >= 32:
            raise KeyboardInterrupt

    with ObjectDataset(image_folder, listing=tmp_path / "kept") as dataset, pytest.raises(KeyboardInterrupt):
        dataset.store_digests(stop)

    async def change(store: Store) -> None:
        await store.put(EXPECTED[3], make_jpeg(60))
        await store.put("dog/0060.jpg", make_jpeg(61))

    on_store(image_folder, change)
    with ObjectDataset(image_folder, listing=tmp_path / "kept", refresh=True) as dataset:
        assert dataset.store_digests() == N - 32 + 2
    with ObjectDataset(image_folder) as dataset, pytest.raises(ConfigurationError, match="listing= or cache_dir="):
        dataset.store_digests()


# -- objects that change, or are no pictures ---------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["longer", "same size", "deleted"])
def test_an_object_that_changed_is_one_error(
    image_folder: str, make_jpeg: MakeJpeg, change: str, no_leaks: None
) -> None:
    with ObjectDataset(image_folder) as dataset:

        async def alter(store: Store) -> None:
            if change == "deleted":
                await store.delete(EXPECTED[17])
            else:
                old = bytes((await store.get(EXPECTED[17])).data)
                await store.put(EXPECTED[17], old + b"!" if change == "longer" else old[::-1])

        on_store(image_folder, alter)
        seen = []
        with pytest.raises(DatasetChanged, match="refresh=True") as caught:
            for batch in ConcurrentDataLoader(dataset, 5):
                seen += batch["key"]
        assert seen == EXPECTED[:15]
        assert (caught.value.key, caught.value.sample, caught.value.url) == (EXPECTED[17], 17, image_folder)
        with pytest.raises(DatasetChanged) as caught:
            dataset[17]
        assert (caught.value.key, caught.value.sample) == (EXPECTED[17], 17)
        assert dataset[16]["image"]


def test_what_is_no_picture_is_named(image_folder: str, no_leaks: None) -> None:
    async def spoil(store: Store) -> None:
        await store.put(EXPECTED[23], b"no picture at all")
        await store.put(EXPECTED[40], b"")

    on_store(image_folder, spoil)
    with ObjectDataset(image_folder) as dataset:
        for chosen in (23, 40):
            with pytest.raises(DecodeError) as caught:
                list(ConcurrentDataLoader(dataset.subset(range(chosen, chosen + 9)), 30, decode={"image": "rgb"}))
            assert (caught.value.sample, caught.value.key) == (chosen, EXPECTED[chosen])
            assert EXPECTED[chosen] in str(caught.value)
        with pytest.raises(TransformError) as failed:
            list(ConcurrentDataLoader(dataset, 60, transform=lambda sample: sample["nothing"]))
        assert failed.value.key == EXPECTED[failed.value.sample or 0]
        assert dataset[40]["image"] == b""


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_a_decayed_copy_is_fetched_again(image_folder: str, make_jpeg: MakeJpeg, tmp_path: Path) -> None:
    with ObjectDataset(image_folder, cache_dir=tmp_path) as dataset:
        first = dataset[:]
        files = sorted(tmp_path.glob("*.sparse"))
        assert len(files) == N
        for file in files[:5]:
            with file.open("r+b") as stream:
                stream.seek(100)
                stream.write(b"decay")
        files[5].write_bytes(files[5].read_bytes()[:-60])  # cut in the object
        files[6].write_bytes(files[6].read_bytes()[:-8])  # cut in the record
        gets = dataset.fetch_stats.num_gets
        assert dataset[:] == first
        assert dataset.fetch_stats.num_gets - gets == 7
        assert dataset.cache_stats.num_quarantined == 5
        assert dataset[:] == first
        assert dataset.fetch_stats.num_gets - gets == 7


def test_the_cache_stays_within_its_budget_and_is_looked_after(image_folder: str, tmp_path: Path) -> None:
    with ObjectDataset(image_folder, cache_dir=tmp_path, cache_bytes=200_000) as dataset:
        for _ in range(2):
            assert len(dataset[:]) == N
    folder = CacheFolder(tmp_path)
    try:
        content = inspect_cache(folder)
        assert 0 < content.num_bytes <= 200_000
        assert verify_cache(folder).problems == ()
        assert verify_cache(folder).num_ranges == content.num_sparse
        assert collect_garbage(folder, budget_bytes=50_000).num_evicted > 0
        assert inspect_cache(folder).num_bytes <= 50_000
    finally:
        folder.close()


def test_another_object_under_the_same_key_is_not_the_cached_one(
    image_folder: str, make_jpeg: MakeJpeg, tmp_path: Path
) -> None:
    with ObjectDataset(image_folder, cache_dir=tmp_path) as dataset:
        old = dataset[0]

    async def replace(store: Store) -> None:
        await store.put(EXPECTED[0], make_jpeg(99))

    on_store(image_folder, replace)
    with ObjectDataset(image_folder, cache_dir=tmp_path, refresh=True) as dataset:
        assert dataset[0]["image"] == make_jpeg(99)
        assert old["image"] != make_jpeg(99)


# -- processes and ends ------------------------------------------------------------------------------------------------


def test_pickles_with_its_listing(tmp_path: Path, make_jpeg: MakeJpeg) -> None:
    url = fill(str(tmp_path / "images"), make_jpeg)
    with ObjectDataset(url, labels="folder") as dataset:
        data = pickle.dumps(dataset)
        fingerprint = dataset.fingerprint

    async def add(store: Store) -> None:
        await store.put("dog/0060.jpg", b"")

    on_store(url, add)
    with pickle.loads(data) as copy:
        assert copy.fingerprint == fingerprint
        assert copy[0] == {"image": make_jpeg(0), "key": "ant/0000.JPG", "label": 0}
        assert pickle.loads(pickle.dumps(copy)).fingerprint == fingerprint


@pytest.mark.processes
def test_works_in_a_forked_process(tmp_path: Path, make_jpeg: MakeJpeg) -> None:
    url = fill(str(tmp_path / "images"), make_jpeg)
    with ObjectDataset(url) as dataset:
        assert len(dataset[:3]) == 3
        pid = os.fork()
        if pid == 0:
            seen = [key for batch in ConcurrentDataLoader(dataset, 8, shuffle=True) for key in batch["key"]]
            os._exit(0 if sorted(seen) == EXPECTED else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(dataset[:]) == N


def test_closing_leaves_nothing_and_is_final(image_folder: str, no_leaks: None) -> None:
    dataset = ObjectDataset(image_folder)
    batches = iter(ConcurrentDataLoader(dataset, 4, shuffle=True))
    next(batches)
    del batches
    dataset.close()
    dataset.close()
    with pytest.raises(StoreClosed):
        dataset[0]


def test_a_plan_over_a_million_objects_is_no_burden() -> None:
    from concurrent_loader.order.epoch_plan import EpochPlan

    plan = EpochPlan(
        samples_per_unit=np.ones(1_000_000, np.int64), global_batch_size=256, window=1, last_batch="drop", seed=1
    )
    firsts = [plan.batch(step).sample for step in (0, 1, 3905)]
    assert len(np.unique(np.concatenate(firsts))) == 3 * 256
    upcoming = plan.units_in_order(3900)
    assert [next(upcoming)[1] for _ in range(256)] == plan.batch(3900).shard.tolist()


# -- over S3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_from_a_bucket(s3_bucket: Any, make_jpeg: MakeJpeg, tmp_path: Path, no_leaks: None) -> None:
    url = f"{s3_bucket.url}/images"
    fill(url, make_jpeg, **s3_bucket.storage_options)
    for client in ("native", "aiobotocore"):
        options = {"client": client, "storage_options": s3_bucket.storage_options, "hedge": None}
        with ObjectDataset(url, labels="folder", cache_dir=tmp_path / client, **options) as dataset:  # type: ignore[arg-type]
            loader = ConcurrentDataLoader(dataset, 8, shuffle=True, decode={"image": "rgb"})
            for _ in range(2):
                assert sorted(key for batch in loader for key in batch["key"]) == EXPECTED
            assert dataset.fetch_stats.num_gets == N


@pytest.mark.s3
@pytest.mark.parametrize("client", ["native", "aiobotocore"])
def test_a_replaced_object_in_a_bucket(s3_bucket: Any, make_jpeg: MakeJpeg, client: str, no_leaks: None) -> None:
    url = f"{s3_bucket.url}/images"
    fill(url, make_jpeg, **s3_bucket.storage_options)
    with ObjectDataset(url, client=client, storage_options=s3_bucket.storage_options) as dataset:

        async def replace(store: Store) -> None:
            old = bytes((await store.get(EXPECTED[30])).data)
            await store.put(EXPECTED[30], old[::-1])

        on_store(url, replace, **s3_bucket.storage_options)
        with pytest.raises(DatasetChanged) as caught:
            list(ConcurrentDataLoader(dataset, 8, shuffle=True))
        assert (caught.value.key, caught.value.sample) == (EXPECTED[30], 30)


# -- names that no key can have ----------------------------------------------------------------------------------------


def test_objects_that_cannot_be_named_are_an_error_or_left_out(
    tmp_path: Path, make_jpeg: MakeJpeg, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("1.jpg", "new\nline.jpg", os.fsdecode(b"caf\xe9.jpg"), "new\nline.txt"):
        (tmp_path / name).write_bytes(make_jpeg(1))
    with pytest.raises(StorageError, match=r"2 in total: .*pass on_error='skip'"):
        ObjectDataset(str(tmp_path))
    listing = tmp_path / "kept.listing"
    with ObjectDataset(str(tmp_path), on_error="skip", listing=listing) as dataset:
        assert dataset.column("key") == ["1.jpg"]
    assert r"caf\xe9.jpg, new\nline.jpg" in caplog.text
    with pytest.raises(StorageError, match="2 in total"):  # what was kept answers another question
        ObjectDataset(str(tmp_path), listing=listing)
    with pytest.raises(ConfigurationError, match="on_error"):
        ObjectDataset(str(tmp_path), on_error="ignore")  # type: ignore[arg-type]


def test_a_data_set_of_shards_is_named_and_no_json_is_shown(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shards", columns={"label": "int64"}) as writer:
        writer.write({"label": 1})
    with pytest.raises(ConfigurationError, match="open it with ShardDataset") as caught:
        ObjectDataset(tmp_path / "shards")
    assert "{" not in str(caught.value)
    with ObjectDataset(tmp_path / "shards", column_type="bytes") as raw:
        assert len(raw) >= 2
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(NotFound, match=r"found no object whose key ends with \.jpg, .*suffixes") as missing:
        ObjectDataset(tmp_path, pattern="x*")
    assert "and whose key matches 'x*'" in str(missing.value)
    assert "{" not in str(missing.value)
