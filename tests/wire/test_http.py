"""Faults of HTTP in front of a real server: what heals is healed, what does not ends in one error that says where."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from itertools import chain, repeat

import pytest
import xxhash

from concurrent_loader.storage import open_store
from concurrent_loader.storage.errors import (
    AccessDenied,
    ConfigurationError,
    ConnectionFailed,
    CorruptData,
    DatasetChanged,
    DeadlineExceeded,
    DigestMismatch,
    ProtocolViolation,
    ServerError,
    StorageError,
    Throttled,
    TransientError,
    TruncatedBody,
)
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.testing.faults.wire_faults import (
    CLOCK_SKEW,
    EXPIRED_TOKEN,
    INTERNAL_ERROR,
    REVOKED,
    SLOW_DOWN,
    WRONG_REGION,
    Announce,
    Close,
    Delay,
    Dribble,
    Flip,
    Rates,
    Refuse,
    Reset,
    ShiftRange,
    Silence,
    WholeObject,
    always,
    in_order,
    is_range,
    seeded,
)

pytestmark = [pytest.mark.s3, pytest.mark.timeout(60)]

MIB = 1 << 20
GENEROUS_S = 30  # what takes longer hangs

# Befall the first requests; None lets one pass between.
HEALING = {
    "503 for a while": [SLOW_DOWN] * 5,
    "500": [INTERNAL_ERROR, None, INTERNAL_ERROR, INTERNAL_ERROR],
    "reset before the answer": [Reset(), None, Reset()],
    "reset at the first byte": [Reset(0)],
    "reset inside the body": [Reset(1000), None, Reset(3000)],
    "reset at the last byte": [Reset(-1)],
    "cut inside the body": [Close(1000), None, Close(2000)],
    "cut at the last byte": [Close(-1)],
    "black hole": [Silence()],
    "stall inside the body": [Silence(1000)],
    "late": [Delay(5.0)],
    "dribble": [Dribble(100, 0.2)],
    "another range": [ShiftRange(512)],
    "the whole object": [None, WholeObject()],
    "announced too short": [Announce(-10)],
    "announced too long": [Announce(10)],
    "an error document with 200": [Refuse(200, "InternalError"), None, Refuse(200, "SlowDown")],
    "a flipped byte": [Flip((17,))],
    "the first and the last byte flipped": [Flip((0, -1))],
}
STORMS = {
    "503, 10 %": Rates(seed=2, slow_down=0.1),
    "503, 50 %": Rates(seed=1, slow_down=0.5),
    "a bad day": Rates(
        seed=3, slow_down=0.1, error=0.05, reset=0.05, reset_body=0.05, close_body=0.05, flip=0.02, lie=0.05
    ),
}


@dataclass
class Fetcher:
    """Reads the object ``big`` by way of the proxy."""

    engine: FetchEngine
    big: bytes

    async def whole(self) -> None:
        digest = xxhash.xxh3_64_intdigest(self.big)
        result = await self.engine.fetch("big", 0, len(self.big), digest=digest, object_size=len(self.big))
        assert bytes(result.data) == self.big

    async def whole_in_pieces(self) -> None:
        into = bytearray(len(self.big))

        async def write(position: int, piece: memoryview) -> None:
            into[position : position + len(piece)] = piece

        digest = xxhash.xxh3_64_intdigest(self.big)
        await self.engine.fetch_into("big", 0, len(self.big), write, digest=digest, object_size=len(self.big))
        assert into == self.big

    async def part(self, start: int, size: int) -> None:
        wanted = self.big[start : start + size]
        result = await self.engine.fetch("big", start, start + size, digest=xxhash.xxh3_64_intdigest(wanted))
        assert bytes(result.data) == wanted

    async def parts(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(self.part(4000 + number * 50_000, 4096))


@pytest.fixture
async def fetcher(proxy, objects, client, policy):
    async with open_store(objects.url, client=client, **objects.options(proxy)) as store:
        # A piece of 1 MiB at the slowest pace is what a stalled body may take: two seconds.
        yield Fetcher(FetchEngine(store, in_flight=8, retry=policy(min_bytes_per_s=512 * 1024)), objects.big)


def happened(proxy, faults):
    """Fails unless each of these befell somebody; one that has no effect proves nothing."""
    assert missed(proxy, faults) == []


def missed(proxy, faults):
    """Those that befell nobody."""
    seen = [fault for exchange in proxy.exchanges for fault in exchange.faults]
    return [fault for fault in faults if fault is not None and fault not in seen]


@pytest.mark.parametrize("name", HEALING)
async def test_ranges_heal(proxy, fetcher, name):
    faults = [fault for fault in HEALING[name] if fault is not None]
    for read in (fetcher.whole, fetcher.whole_in_pieces, fetcher.parts):
        proxy.forget()
        proxy.script = in_order(faults)
        await read()
        happened(proxy, faults)
    assert fetcher.engine.stats.in_flight == 0


# Every fault heals for single ranges, above; a whole epoch meets one of each kind.
EPOCHS_HEAL = (
    "503 for a while", "500", "reset inside the body", "black hole", "stall inside the body", "another range",
    "a flipped byte",
)  # fmt: skip


@pytest.mark.parametrize("name", EPOCHS_HEAL)
def test_epochs_heal(proxy, epochs, tmp_path, name):
    for number in range(5):
        proxy.script = in_order([])
        with epochs.open(epochs.objects.options(proxy), cache_dir=tmp_path / str(number)) as dataset:
            # Some shards arrive before the first fault.
            proxy.script = in_order(chain(repeat(None, 3), HEALING[name]))
            loader = epochs.loader(dataset)
            epochs.check(loader)
            left = missed(proxy, HEALING[name])
            proxy.script = always(Reset())  # all of it is in the cache now
            epochs.check(loader)
        # A fault may have come to a request that was over before it: which one gets it is a matter of timing.
        if not left:
            return
    assert left == []


@pytest.mark.parametrize("name", STORMS)
def test_epochs_weather_storms(proxy, epochs, name):
    proxy.script = seeded(STORMS[name])
    with epochs.open(epochs.objects.options(proxy), retry=epochs.policy(max_attempts=30)) as dataset:
        epochs.check(epochs.loader(dataset))
        stats = dataset.fetch_stats
    assert sum(proxy.counts.values()) >= 3
    assert stats.num_retries + stats.num_refetched >= 1
    assert (stats.num_throttled > 0) == ("Refuse" in proxy.counts)


async def test_a_body_cut_again_and_again_is_resumed_where_it_ended(proxy, fetcher):
    """Beyond max_attempts even: an attempt that brought bytes was not in vain."""
    proxy.script = always(Close(500_000))
    await fetcher.part(1000, 4 * MIB)
    asked = [exchange.request for exchange in proxy.exchanges]
    assert len(asked) > 8
    assert {request.range[1] for request in asked} == {1000 + 4 * MIB}
    starts = [request.range[0] for request in asked]
    assert starts == sorted(starts)
    # A range of a few megabytes is asked for in one piece first, which is lost; never again.
    assert len(starts) <= len(set(starts)) + 1
    # What comes later must be of the same object: the ETag says so.
    assert all(request.if_match for request in asked[1:])
    assert sum(exchange.num_bytes for exchange in proxy.exchanges) < 4 * MIB + 9 * 500_000
    # Each on a connection of its own: the old one is not trusted.
    assert len({request.connection for request in asked}) == len(asked)


async def test_a_flipped_byte_costs_one_range_more(proxy, fetcher):
    proxy.script = in_order([Flip((99,))])
    await fetcher.part(0, MIB)
    assert [exchange.request.range for exchange in proxy.exchanges] == [(0, MIB)] * 2
    assert fetcher.engine.stats.num_refetched == 1
    first, second = (exchange.request.connection for exchange in proxy.exchanges)
    assert first != second


# Befall every request for a range, for ever.
FATAL = {
    "503": (SLOW_DOWN, Throttled),
    "500": (INTERNAL_ERROR, ServerError),
    "reset before the answer": (Reset(), ConnectionFailed),
    "reset at the first byte": (Reset(0), TransientError),
    "cut at the first byte": (Close(0), TruncatedBody),
    "black hole": (Silence(), DeadlineExceeded),
    "stall at the first byte": (Silence(0), DeadlineExceeded),
    "late": (Delay(5.0), DeadlineExceeded),
    "dribble": (Dribble(1, 0.5), DeadlineExceeded),
    "another range": (ShiftRange(512), ProtocolViolation),
    "the whole object": (WholeObject(), ProtocolViolation),
    "announced too short": (Announce(-10), TransientError),
    "an error document with 200": (Refuse(200, "InternalError"), ProtocolViolation),
    "flipped bytes": (Flip((17,)), DigestMismatch),
}
IMPATIENT = {"max_attempts": 2, "deadline_s": 10.0}


@pytest.mark.parametrize("name", FATAL)
async def test_ranges_end_in_one_error(proxy, objects, client, policy, name):
    fault, kind = FATAL[name]
    async with open_store(objects.url, client=client, **objects.options(proxy)) as store:
        fetcher = Fetcher(FetchEngine(store, in_flight=8, retry=policy(**IMPATIENT)), objects.big)
        proxy.script = always(fault)
        begun = time.monotonic()
        with pytest.raises(kind) as caught:
            await fetcher.part(5000, 4096)
        assert time.monotonic() - begun < GENEROUS_S
        happened(proxy, [fault])
        error = caught.value
        assert (error.url, error.key, error.start, error.end) == (objects.url, "big", 5000, 9096)
        # Two in a row that brought nothing; those that brought a few bytes do not count.
        assert error.attempts is not None
        assert 2 <= error.attempts <= (12 if isinstance(fault, Announce) else 2)
        assert fetcher.engine.stats.in_flight == 0
        proxy.script = in_order([])
        await fetcher.part(5000, 4096)  # the engine is as good as new


# Here, too, single ranges meet every fault, and a whole epoch one of each kind.
EPOCHS_END = ("503", "500", "reset before the answer", "black hole", "another range", "flipped bytes")


@pytest.mark.parametrize("name", EPOCHS_END)
def test_epochs_end_in_one_error(proxy, epochs, name):
    fault, kind = FATAL[name]
    with epochs.open(epochs.objects.options(proxy), retry=epochs.policy(**IMPATIENT)) as dataset:
        proxy.script = always(fault)
        loader = epochs.loader(dataset, shuffle=False, prefetch_batches=1, prefetch_bytes="16KiB")
        begun = time.monotonic()
        with pytest.raises(StorageError) as caught:
            epochs.check(loader)
        assert time.monotonic() - begun < GENEROUS_S
        happened(proxy, [fault])
        error = caught.value
        # The same bytes over every connection: no client can tell that from an object that is another one.
        assert isinstance(error, DatasetChanged if kind is DigestMismatch else kind)
        assert error.url == epochs.objects.dataset_url
        assert error.key is not None
        assert error.shard == error.key
        assert error.start is not None
        assert error.end is not None
        assert error.attempts is not None
        assert error.sample == 0  # the first that cannot be delivered
        proxy.script = in_order([])
        epochs.check(epochs.loader(dataset))  # the data set is as good as new


def test_bytes_that_are_damaged_in_another_way_each_time_are_no_changed_data_set(proxy, epochs):
    numbers = itertools.count()
    with epochs.open(epochs.objects.options(proxy), retry=epochs.policy(**IMPATIENT)) as dataset:
        proxy.script = lambda request: (Flip((next(numbers) % 1000,)),) if is_range(request) else ()
        with pytest.raises(DigestMismatch) as caught:
            epochs.check(epochs.loader(dataset, shuffle=False))
        assert (caught.value.url, caught.value.sample) == (epochs.objects.dataset_url, 0)
        proxy.script = in_order([])
        epochs.check(epochs.loader(dataset))


def test_a_dead_store_is_told_of_in_time_although_much_was_asked_for(proxy, epochs):
    """Ranges that were fetched ahead do not wait for each other's attempts, one deadline after the other."""
    with epochs.open(epochs.objects.options(proxy), retry=epochs.policy(**IMPATIENT)) as dataset:
        proxy.script = always(Silence())
        begun = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            epochs.check(epochs.loader(dataset, prefetch_bytes="64MiB"))
        assert time.monotonic() - begun < GENEROUS_S


async def test_who_waits_behind_others_at_a_dead_store_is_told_as_soon_as_they_are(proxy, objects, client, policy):
    """One place in flight, forty ranges: one deadline later all of them have ended, not one after the other."""
    async with open_store(objects.url, client=client, **objects.options(proxy)) as store:
        engine = FetchEngine(store, in_flight=1, retry=policy(first_byte_s=2.0, deadline_s=2.0))
        proxy.script = always(Silence())
        begun = time.monotonic()
        ends = await asyncio.gather(
            *(engine.fetch("big", start, start + 100) for start in range(40)), return_exceptions=True
        )
        assert time.monotonic() - begun < GENEROUS_S  # 80 s, if each had its attempt after the other
        for start, error in enumerate(ends):
            assert isinstance(error, DeadlineExceeded)
            assert (error.url, error.key, error.start, error.end) == (objects.url, "big", start, start + 100)
            assert error.attempts is not None
        assert engine.stats.in_flight == 0


# Answers that no further attempt will change, and a word of what helps.
REFUSALS = {
    "clock": (CLOCK_SKEW, AccessDenied, "clock"),
    "expired token": (EXPIRED_TOKEN, AccessDenied, "expired"),
    "revoked key": (REVOKED, AccessDenied, "key"),
    "another region": (WRONG_REGION, ConfigurationError, "region"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_mid_epoch_say_what_to_do(proxy, epochs, name):
    fault, kind, word = REFUSALS[name]
    with epochs.open(epochs.objects.options(proxy), in_flight=2) as dataset:
        loader = epochs.loader(dataset, shuffle=False, prefetch_batches=1, prefetch_bytes=1)
        batches = iter(loader)
        next(batches)
        proxy.script = always(fault, when=lambda request: True)
        with pytest.raises(kind, match=word) as caught:
            for _ in batches:
                pass
        happened(proxy, [fault])
        error = caught.value
        assert error.url == epochs.objects.dataset_url
        assert error.shard is not None
        options = epochs.objects.options()
        assert options["secret_access_key"] not in f"{error!r} {error} {error.__cause__!r}"


def test_opening_insists_too(proxy, epochs):
    proxy.script = in_order([SLOW_DOWN, Reset(), Silence(), INTERNAL_ERROR], when=lambda request: True)
    with epochs.open(epochs.objects.options(proxy)) as dataset:
        assert len(dataset) == 240
    assert proxy.counts == {"Refuse": 2, "Reset": 1, "Silence": 1}


def test_a_bad_manifest_is_no_data_set(proxy, epochs):
    def is_manifest(request):
        return request.method == "GET" and "manifests/" in request.path

    proxy.script = always(Flip((5,)), when=is_manifest)
    with pytest.raises(CorruptData) as caught:
        epochs.open(epochs.objects.options(proxy))
    assert proxy.counts["Flip"] >= 1
    assert "manifests/" in caught.value.key
