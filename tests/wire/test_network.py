"""Faults of the network in front of a real server: latency, bandwidth, resets, slices, cuts, silence, no name."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from concurrent_loader.storage import open_store
from concurrent_loader.storage.errors import ConnectionFailed, DeadlineExceeded, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.testing import toxiproxy

pytestmark = [pytest.mark.s3, pytest.mark.timeout(60)]

KIB = 1 << 10
GENEROUS_S = 30


@pytest.fixture
def network(s3_server, toxiproxy_program, _baseline):
    with toxiproxy(s3_server, latency_ms=0, bandwidth_mb_s=None) as network:
        yield network


@pytest.fixture
async def engine(network, objects, client, policy):
    async with open_store(objects.url, client=client, **objects.options(network)) as store:
        yield FetchEngine(store, in_flight=4, retry=policy())


async def read(engine, big, *, num_ranges=4, size=512 * KIB):
    async def one(start):
        assert bytes((await engine.fetch("big", start, start + size)).data) == big[start : start + size]

    async with asyncio.TaskGroup() as group:
        for number in range(num_ranges):
            group.create_task(one(number * size))


async def retried(engine, count):
    """Comes back when the engine has had to repeat so many requests."""
    while engine.stats.num_retries < count:
        await asyncio.sleep(0.005)


# What befalls connections until it is taken away, and what it breaks.
TOXICS = {
    "reset_peer": ("reset_peer", {"timeout": 0}),
    "limit_data": ("limit_data", {"bytes": 1000}),
    "timeout": ("timeout", {"timeout": 0}),
    "timeout, then closed": ("timeout", {"timeout": 50}),
}


@pytest.mark.parametrize("name", TOXICS)
async def test_ranges_outlast_it(network, engine, objects, name):
    kind, attributes = TOXICS[name]
    network.add_toxic("trouble", kind, **attributes)
    reading = asyncio.create_task(read(engine, objects.big))
    await retried(engine, 4)
    network.remove_toxic("trouble")
    await reading
    assert engine.stats.in_flight == 0


async def test_ranges_outlast_a_server_that_is_away(network, engine, objects):
    network.disable()
    reading = asyncio.create_task(read(engine, objects.big))
    await retried(engine, 4)
    network.enable()
    await reading


@pytest.mark.parametrize("name", TOXICS)
def test_epochs_outlast_it(network, epochs, name):
    kind, attributes = TOXICS[name]
    with epochs.open(epochs.objects.options(network)) as dataset:
        network.add_toxic("trouble", kind, **attributes)

        def remove():
            deadline = time.monotonic() + GENEROUS_S
            while dataset.fetch_stats.num_retries < 3 and time.monotonic() < deadline:
                time.sleep(0.005)
            network.remove_toxic("trouble")

        removing = threading.Thread(target=remove)
        removing.start()
        try:
            epochs.check(epochs.loader(dataset))
        finally:
            removing.join()
        assert dataset.fetch_stats.num_retries >= 3


@pytest.mark.parametrize("name", ["reset_peer", "timeout"])
async def test_for_ever_it_is_one_error(network, objects, client, policy, name):
    kind, attributes = TOXICS[name]
    network.add_toxic("trouble", kind, **attributes)
    async with open_store(objects.url, client=client, **objects.options(network)) as store:
        engine = FetchEngine(store, retry=policy(max_attempts=3))
        begun = time.monotonic()
        with pytest.raises((ConnectionFailed, DeadlineExceeded)) as caught:
            await engine.fetch("big", 10, 20)
    assert time.monotonic() - begun < GENEROUS_S
    error = caught.value
    assert (error.url, error.key, error.start, error.end, error.attempts) == (objects.url, "big", 10, 20, 3)


async def test_cut_connections_are_resumed(network, engine, objects):
    """No connection ever carries a whole range, for ever: every attempt brings some bytes, so it goes on."""
    network.add_toxic("cut", "limit_data", bytes=300_000)
    await read(engine, objects.big, num_ranges=2, size=1024 * KIB)
    assert engine.stats.num_retries >= 4


async def test_latency_slices_and_little_bandwidth_only_cost_time(network, engine, objects):
    network.add_toxic("slices", "slicer", average_size=16_000, size_variation=8_000, delay=100)
    network.add_toxic("latency", "latency", latency=60, jitter=20)
    network.add_toxic("bandwidth", "bandwidth", rate=8_000)
    begun = time.monotonic()
    await read(engine, objects.big, num_ranges=2, size=256 * KIB)
    # 256 KiB at 8 MB/s behind 40 ms at least.
    assert time.monotonic() - begun > 0.06


@pytest.mark.parametrize("kind", ["latency", "slicer", "bandwidth"])
def test_epochs_over_a_slow_network(network, epochs, kind):
    attributes = {
        "latency": {"latency": 40, "jitter": 20},
        "slicer": {"average_size": 500, "size_variation": 200, "delay": 50},
        "bandwidth": {"rate": 500},
    }[kind]
    with epochs.open(epochs.objects.options(network)) as dataset:
        network.add_toxic("slow", kind, **attributes)
        assert network.toxics() == ["slow"]
        epochs.check(epochs.loader(dataset))


async def test_a_name_that_does_not_resolve(objects, client, policy):
    options = {**objects.options(), "endpoint_url": "http://nowhere.invalid:9000"}
    begun = time.monotonic()
    async with open_store(objects.url, client=client, **options) as store:
        with pytest.raises(ConnectionFailed) as caught:
            await FetchEngine(store, retry=policy(max_attempts=2, first_byte_s=GENEROUS_S)).fetch("big", 0, 10)
    assert time.monotonic() - begun < GENEROUS_S
    error = caught.value
    assert (error.url, error.key, error.start, error.end, error.attempts) == (objects.url, "big", 0, 10, 2)


def test_a_data_set_behind_a_name_that_does_not_resolve(epochs):
    options = {**epochs.objects.options(), "endpoint_url": "http://nowhere.invalid:9000"}
    with pytest.raises(ConnectionFailed) as caught:
        epochs.open(options, retry=epochs.policy(max_attempts=2, first_byte_s=GENEROUS_S))
    assert caught.value.url == epochs.objects.dataset_url


FEW_DESCRIPTORS = """
import json, resource, sys, xxhash
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.fetch import RetryPolicy

told = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_NOFILE, (told["limit"], told["limit"]))
try:
    with ShardDataset(
        told["url"], client=told["client"], storage_options=told["options"], cache_dir=told["cache"], in_flight=128,
        retry=RetryPolicy(max_attempts=6, base_delay_s=0.05, max_delay_s=0.5, deadline_s=20.0),
    ) as dataset:
        for batch in ConcurrentDataLoader(dataset, batch_size=16, prefetch_bytes="64MiB", prefetch_batches=16):
            for label, data in zip(batch["label"].tolist(), batch["data"]):
                print(json.dumps([label, f"{xxhash.xxh3_64_intdigest(data):016x}"]))
except (StorageError, OSError) as error:
    print(json.dumps(["error", type(error).__name__, str(error)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits descriptors as Linux counts them")
def test_few_descriptors(network, objects, client, tmp_path, truth):
    """All samples, or the right ones up to one typed error; it does not hang and tells no lies."""
    network.add_toxic("latency", "latency", latency=100)  # so that many connections are wanted at once
    told = {
        "url": objects.dataset_url,
        "client": client,
        "options": objects.options(network),
        "cache": str(tmp_path),
        "limit": 64,
    }
    done = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    errors = [line for line in lines if line[0] == "error"]
    samples = [line for line in lines if line[0] != "error"]
    assert all(int(digest, 16) == truth[label] for label, digest in samples)
    assert len({label for label, _ in samples}) == len(samples)
    if errors:
        ((_, kind, message),) = errors
        assert issubclass(
            getattr(__import__("concurrent_loader.storage.errors", fromlist=[kind]), kind), StorageError
        ), message
        assert lines[-1] is errors[0]
    else:
        assert len(samples) == len(truth)
