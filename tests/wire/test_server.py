"""A server of one's own that freezes, dies and comes back."""

from __future__ import annotations

import threading
import time

import pytest

from concurrent_loader.storage.errors import ConnectionFailed, DeadlineExceeded, StorageError, TransientError
from concurrent_loader.storage.testing import mortal_s3

pytestmark = [pytest.mark.s3, pytest.mark.timeout(90)]

GENEROUS_S = 30


@pytest.fixture
def mortal(s3_server, _baseline):
    if s3_server.kind != "minio":
        pytest.skip("moto forgets its objects when it dies")
    with mortal_s3() as mortal:
        yield mortal


@pytest.fixture
def mortal_epochs(mortal, make_objects, make_epochs):
    return make_epochs(make_objects(mortal.server))


def slowly(epochs, dataset):
    """A loader that has not fetched much ahead when its first batch comes."""
    return epochs.loader(dataset, shuffle=False, prefetch_batches=1, prefetch_bytes=1)


@pytest.fixture(params=["frozen", "killed"])
def away(request, mortal):
    """Takes the server away, and brings it back."""
    return (mortal.freeze, mortal.thaw) if request.param == "frozen" else (mortal.kill, mortal.restart)


def test_a_server_that_comes_back(mortal_epochs, away, check_batch):
    epochs = mortal_epochs
    leave, come_back = away
    policy = epochs.policy(max_attempts=100, deadline_s=60.0)
    with epochs.open(epochs.objects.options(), retry=policy) as dataset:
        batches = iter(slowly(epochs, dataset))
        seen = check_batch(next(batches))
        leave()
        before = dataset.fetch_stats.num_retries
        deadline = time.monotonic() + GENEROUS_S
        # Nobody takes the batches, so what is fetched ahead ends; the next that is asked for has to insist.
        with _Returning(dataset, before + 2, come_back, deadline):
            for batch in batches:
                seen += check_batch(batch)
        assert dataset.fetch_stats.num_retries >= before + 2
    assert seen == list(range(240))


class _Returning:
    """Brings the server back, on another thread, when so many requests have been repeated in vain."""

    def __init__(self, dataset, num_retries, come_back, deadline):
        def wait():
            while dataset.fetch_stats.num_retries < num_retries and time.monotonic() < deadline:
                time.sleep(0.005)
            come_back()

        self._thread = threading.Thread(target=wait)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._thread.join()


def test_a_server_that_stays_away(mortal_epochs, away, check_batch):
    epochs = mortal_epochs
    leave, come_back = away
    with epochs.open(epochs.objects.options(), retry=epochs.policy(max_attempts=3, deadline_s=15.0)) as dataset:
        batches = iter(slowly(epochs, dataset))
        check_batch(next(batches))
        leave()
        begun = time.monotonic()
        with pytest.raises(TransientError) as caught:
            for batch in batches:
                check_batch(batch)
        assert time.monotonic() - begun < GENEROUS_S
        error = caught.value
        assert isinstance(error, DeadlineExceeded | ConnectionFailed)
        assert error.url == epochs.objects.dataset_url
        assert error.shard == error.key
        assert error.attempts == 3
        come_back()
        epochs.check(epochs.loader(dataset))


def test_objects_that_are_deleted_mid_epoch(mortal_epochs, check_batch):
    epochs = mortal_epochs
    with epochs.open(epochs.objects.options()) as dataset:
        batches = iter(slowly(epochs, dataset))
        check_batch(next(batches))

        async def delete(store):
            for key in [meta.key async for meta in store.list("")]:
                await store.delete(key)

        epochs.objects.on_store(delete)
        with pytest.raises(StorageError) as caught:
            for batch in batches:
                check_batch(batch)
    error = caught.value
    assert type(error).__name__ in ("NotFound", "DatasetChanged")
    assert error.url == epochs.objects.dataset_url
    assert error.shard == error.key == dataset.manifest.shards[_shard_of(error, dataset)].key


def _shard_of(error, dataset):
    return next(number for number, shard in enumerate(dataset.manifest.shards) if shard.key == error.key)


def test_a_bucket_that_is_deleted_mid_epoch(mortal, mortal_epochs, check_batch):
    epochs = mortal_epochs
    policy = epochs.policy(max_attempts=1000, deadline_s=60.0)
    with epochs.open(epochs.objects.options(), retry=policy) as dataset:
        batches = iter(slowly(epochs, dataset))
        check_batch(next(batches))
        mortal.kill()
        mortal.forget()
        mortal.restart()
        with pytest.raises(StorageError, match="bucket") as caught:
            for batch in batches:
                check_batch(batch)
    assert type(caught.value).__name__ == "NotFound"
    assert caught.value.url == epochs.objects.dataset_url
