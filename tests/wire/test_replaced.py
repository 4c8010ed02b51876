"""Objects that become others while they are read: a data set is a snapshot, so that is an error, never other bytes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from concurrent_loader.storage import open_store
from concurrent_loader.storage.errors import DatasetChanged, ObjectChanged
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.testing.faults.wire_faults import Close

pytestmark = [pytest.mark.s3, pytest.mark.timeout(60)]


def replace_last_shard(objects, dataset, change):
    """Overwrites the shard that is read last, really, in the bucket."""
    key = dataset.manifest.shards[-1].key

    async def overwrite(store):
        data = bytes((await store.get(f"data/{key}")).data)
        await store.put(f"data/{key}", change(data))

    objects.on_store(overwrite)
    return key


CHANGES = {
    "longer": lambda data: data + b"more",
    "shorter": lambda data: data[:-1],
    "empty": lambda data: b"",
    "other bytes, same size": lambda data: bytes(byte ^ 0xFF for byte in data),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("cached", [False, True])
def test_a_shard_replaced_mid_epoch(own_objects, make_epochs, check_batch, tmp_path, name, cached):
    epochs = make_epochs(own_objects)
    with epochs.open(own_objects.options(), cache_dir=tmp_path if cached else None) as dataset:
        loader = epochs.loader(dataset, shuffle=False, prefetch_batches=1, prefetch_bytes=1)
        batches = iter(loader)
        seen = check_batch(next(batches))
        key = replace_last_shard(own_objects, dataset, CHANGES[name])
        with pytest.raises(DatasetChanged) as caught:
            for batch in batches:
                seen += check_batch(batch)
    # All that came before is right, and nothing came after.
    assert seen == list(range(len(seen)))
    assert 200 < len(seen) < 240
    error = caught.value
    assert (error.url, error.key, error.shard) == (own_objects.dataset_url, key, key)
    assert None not in (error.start, error.end, error.sample, error.attempts)


async def test_an_object_replaced_inside_a_range(proxy, objects, client, policy):
    """The first bytes are of the old object, the rest must not be of the new one."""
    old, new = (np.random.default_rng(seed).integers(0, 256, 100_000, np.uint8).tobytes() for seed in (1, 2))
    async with (
        open_store(objects.url, client="aiobotocore", **objects.options()) as direct,
        open_store(objects.url, client=client, **objects.options(proxy)) as store,
    ):
        key = f"replaced-{client}"
        meta = await direct.put(key, old)
        loop = asyncio.get_running_loop()
        requests = []

        def script(request):
            requests.append(request)
            if len(requests) == 1:
                return (Close(50_000),)
            if len(requests) == 2:
                asyncio.run_coroutine_threadsafe(direct.put(key, new), loop).result(10)
            return ()

        proxy.script = script
        engine = FetchEngine(store, retry=policy())
        with pytest.raises(ObjectChanged) as caught:
            await engine.fetch(key, 0, 100_000, if_match=meta.etag)
        assert (caught.value.url, caught.value.key) == (objects.url, key)
        # Without an ETag from the caller, the one of the first answer counts.
        requests.clear()
        await direct.put(key, old)
        outcome = (await asyncio.gather(engine.fetch(key, 0, 100_000), return_exceptions=True))[0]
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, ObjectChanged)
        else:
            assert bytes(outcome.data) == new  # all of it from one object
