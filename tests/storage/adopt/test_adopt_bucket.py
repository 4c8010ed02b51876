"""Adopted data in a bucket: with worker processes, a cache folder, and objects that change."""

from __future__ import annotations

import io
import random
import tarfile

import pytest

from concurrent_loader import ConcurrentDataLoader, Mixture, ShardDataset
from concurrent_loader.storage import open_store
from concurrent_loader.storage.adopt import adopt
from concurrent_loader.storage.errors import DatasetChanged
from concurrent_loader.storage.loop_thread import LoopThread

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def tar(number: int, rows: int = 120) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for row in range(rows):
            image = b"\xff\xd8\xff" + random.Random(f"{number}/{row}").randbytes(3000)
            for suffix, value in (("jpg", image), ("cls", b"%d" % (1000 * number + row))):
                member = tarfile.TarInfo(f"{number}-{row:05d}.{suffix}")
                member.size = len(value)
                archive.addfile(member, io.BytesIO(value))
    return data.getvalue()


@pytest.fixture
def put(s3_bucket):
    with LoopThread() as loop:
        store = open_store(f"{s3_bucket.url}/tars", **s3_bucket.storage_options)
        yield lambda key, data: loop.run(store.put(key, data))
        loop.run(store.close())


@pytest.fixture
def index(s3_bucket, put):
    for number in range(3):
        put(f"{number}.tar", tar(number))
    url = f"{s3_bucket.url}/index"
    options = s3_bucket.storage_options
    report = adopt("webdataset", f"{s3_bucket.url}/tars", url, shard_size="128KiB", storage_options=options)
    assert report.num_samples == 360
    return url


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_processes_and_a_cache(s3_bucket, index, tmp_path, method):
    dataset = ShardDataset(index, storage_options=s3_bucket.storage_options, cache_dir=tmp_path / "cache")
    with dataset:
        seen = {}
        for _ in range(2):
            loader = ConcurrentDataLoader(
                dataset, batch_size=16, shuffle=True, num_workers=2,
                multiprocessing_context=method,
            )  # fmt: skip
            for batch in loader:
                seen.update(zip(batch["cls"].tolist(), map(bytes, batch["jpg"]), strict=True))
    assert seen == {
        1000 * number + row: b"\xff\xd8\xff" + random.Random(f"{number}/{row}").randbytes(3000)
        for number in range(3)
        for row in range(120)
    }


def test_an_object_that_changes_ends_the_run_with_its_name(s3_bucket, index, put):
    put("1.tar", tar(7))
    with ShardDataset(index, storage_options=s3_bucket.storage_options) as dataset:
        with pytest.raises(DatasetChanged, match=r"replaced; adopt its source again.*1\.tar"):
            list(ConcurrentDataLoader(dataset, batch_size=16))
        assert bytes(dataset[0]["jpg"]).startswith(b"\xff\xd8\xff")


def test_a_mixture_of_adopted_and_own_shards(s3_bucket, index):
    from concurrent_loader.storage.adopt import convert

    own = f"{s3_bucket.url}/own"
    options = s3_bucket.storage_options
    convert(index, own, storage_options=options)
    with ShardDataset(index, storage_options=options) as one, ShardDataset(own, storage_options=options) as other:
        mixture = Mixture([one, other], weights=[1, 1])
        labels = [label for batch in ConcurrentDataLoader(mixture, batch_size=16) for label in batch["cls"].tolist()]
        assert set(labels) >= {0, 1000, 2000}
