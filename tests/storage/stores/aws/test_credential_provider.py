from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest

from concurrent_loader.storage.errors import AccessDenied, ConfigurationError
from concurrent_loader.storage.stores.aws.aiobotocore_credentials import AiobotocoreCredentials
from concurrent_loader.storage.stores.aws.credential_provider import CredentialProvider
from concurrent_loader.storage.stores.options import S3Options

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now

    def advance(self, **how):
        self.now += timedelta(**how)


class Sts:
    """Hands out keys that hold for a while, and counts."""

    def __init__(self, clock, **life):
        self.clock, self.life, self.num_calls, self.error, self.changes = clock, timedelta(**life), 0, None, True

    def __call__(self):
        self.num_calls += 1
        if self.error is not None:
            raise self.error
        number = self.num_calls if self.changes else 0
        return {
            "access_key_id": f"id-{number}",
            "secret_access_key": f"very-secret-{number}",
            "session_token": f"token-{number}",
            "expires_at": self.clock() + self.life,
        }


@pytest.fixture
def clock():
    return Clock()


def provider_of(sts, clock):
    return CredentialProvider(S3Options(credentials=sts), url="s3://b", clock=clock)


def test_explicit_keys_need_nobody():
    provider = CredentialProvider(S3Options(access_key_id="id", secret_access_key="s", session_token="t"), url="s3://b")
    assert provider.get().keys.session_token == "t"
    assert not provider.renewable


async def test_they_are_renewed_before_they_expire(clock):
    sts = Sts(clock, hours=1)
    provider = provider_of(sts, clock)
    first = provider.get()
    assert first == provider.get() == await provider.get_async()
    clock.advance(minutes=49)
    assert provider.get() is first
    clock.advance(minutes=2)
    assert (await provider.get_async()).keys.access_key_id == "id-2"
    assert sts.num_calls == 2


@pytest.mark.parametrize("seconds", [1, 5, 60, 900])
def test_short_lives_work_too(clock, seconds):
    sts = Sts(clock, seconds=seconds)
    provider = provider_of(sts, clock)
    for _ in range(100):
        held = provider.get()
        assert held.keys.expires_at > clock()
        clock.advance(seconds=seconds / 10)
    assert 10 <= sts.num_calls <= 14


async def test_one_question_for_all_threads_and_tasks(clock):
    asked, answer = threading.Event(), threading.Event()
    sts = Sts(clock, hours=1)

    def slow():
        asked.set()
        answer.wait(30)
        return sts()

    provider = provider_of(slow, clock)
    with ThreadPoolExecutor(20) as threads:
        futures = [threads.submit(provider.get) for _ in range(20)]
        tasks = [asyncio.create_task(provider.get_async()) for _ in range(50)]
        await asyncio.to_thread(asked.wait, 30)
        await asyncio.sleep(0)
        tasks[0].cancel()
        answer.set()
        results = await asyncio.gather(*tasks[1:], *map(asyncio.wrap_future, futures))
    assert len(set(map(id, results))) == 1
    assert sts.num_calls == 1
    assert tasks[0].cancelled()


def test_where_no_thread_can_be_started_that_is_said_and_the_next_one_asks_again(clock, monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    provider = provider_of(Sts(clock, hours=1), clock)
    with monkeypatch.context() as scarce, pytest.raises(RuntimeError, match="can't start new thread"):
        scarce.setattr(threading.Thread, "start", refused)
        provider.get()
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(provider.get).result(timeout=10).keys.access_key_id == "id-1"


def test_while_the_old_ones_hold_a_failure_is_logged_once(clock, caplog):
    sts = Sts(clock, hours=1)
    provider = provider_of(sts, clock)
    first = provider.get()
    clock.advance(minutes=51)
    sts.error = RuntimeError("very-secret words")
    with caplog.at_level(logging.WARNING):
        for _ in range(8):
            assert provider.get().keys == first.keys
            clock.advance(minutes=1)
    assert len(caplog.records) == 1
    assert "the old credentials stay in use until they expire at 2026-01-01T01:00:00" in caplog.text
    assert "very-secret" not in caplog.text
    assert 4 <= sts.num_calls <= 10
    clock.advance(minutes=2)
    with pytest.raises(AccessDenied) as caught:
        provider.get()
    assert "very-secret" not in f"{caught.value!r}{caught.value.__cause__!r}{caught.value.__context__!r}"
    assert "Sts" in str(caught.value)
    assert "RuntimeError at test_credential_provider.py:" in str(caught.value)
    sts.error = None
    assert provider.get().keys != first.keys


def test_dates_are_kept_in_one_zone(clock):
    elsewhere = timezone(timedelta(hours=5))
    keys = {
        "access_key_id": "id",
        "secret_access_key": "s",
        "expires_at": (START + timedelta(hours=1)).astimezone(elsewhere),
    }
    assert provider_of(lambda: keys, clock).get().keys.expires_at.tzinfo is UTC


def test_what_is_no_credentials_is_named(clock):
    provider = provider_of(lambda: "very-secret", clock)
    with pytest.raises(ConfigurationError, match="<lambda>") as caught:
        provider.get()
    assert "very-secret" not in str(caught.value)
    with pytest.raises(AccessDenied, match="expired"):
        provider_of(Sts(clock, hours=-1), clock).get()


async def test_each_waiter_gets_an_error_of_its_own(clock):
    sts, answer = Sts(clock, hours=1), threading.Event()
    sts.error = RuntimeError()

    def slow():
        answer.wait(30)
        return sts()

    provider = provider_of(slow, clock)
    waiting = [asyncio.create_task(provider.get_async()) for _ in range(2)]
    await asyncio.sleep(0)
    answer.set()
    one, two = await asyncio.gather(*waiting, return_exceptions=True)
    assert one is not two
    one.locate(key="a")
    assert two.key is None
    assert sts.num_calls == 1


async def test_refused_keys_are_replaced_once_for_all(clock):
    sts = Sts(clock, hours=1)
    provider = provider_of(sts, clock)
    used = provider.get()
    assert await asyncio.gather(*(provider.renew(used) for _ in range(50))) == [True] * 50
    assert sts.num_calls == 2
    assert await provider.renew(used)  # a late one: there are newer keys already
    assert sts.num_calls == 2


async def test_a_store_that_goes_on_refusing_does_not_drive_the_sts(clock):
    sts = Sts(clock, hours=1)
    sts.changes = False
    provider = provider_of(sts, clock)
    for _ in range(20):
        assert not await provider.renew(provider.get())
    assert sts.num_calls == 2
    clock.advance(seconds=11)
    assert not await provider.renew(provider.get())
    assert sts.num_calls == 3
    sts.error = RuntimeError()
    clock.advance(seconds=11)
    assert not await provider.renew(provider.get())


async def test_explicit_keys_are_not_renewed():
    provider = CredentialProvider(S3Options(access_key_id="id", secret_access_key="s"), url="s3://b")
    assert not await provider.renew(provider.get())


async def test_keys_of_the_environment_are_read_again_when_they_are_refused(monkeypatch, clock):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    provider = CredentialProvider(S3Options(), url="s3://b", clock=clock)
    used = await provider.get_async()
    assert not await provider.renew(used)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "two")
    clock.advance(seconds=11)
    assert await provider.renew(used)
    assert provider.get().keys.access_key_id == "two"


async def test_aiobotocore_gets_the_current_ones(clock):
    provider = provider_of(Sts(clock, hours=1), clock)
    signing = AiobotocoreCredentials(provider)
    assert (await signing.get_frozen_credentials()).token == "token-1"
    clock.advance(hours=2)
    assert (await signing.get_frozen_credentials()).token == "token-2"


def lost_options():
    import re

    data = pickle.dumps(S3Options(access_key_id="left behind", secret_access_key="left behind too"))
    return pickle.loads(re.sub(rb"[0-9a-f]{32}", b"0" * 32, data))


def test_keys_that_were_left_out_of_a_pickle_give_way_to_the_chain(monkeypatch):
    provider = CredentialProvider(lost_options(), url="s3://b")
    with pytest.raises(ConfigurationError, match="with_storage_options"):
        provider.get()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert provider.get().keys.access_key_id == "one"


def test_a_provider_is_not_pickled():
    with pytest.raises(TypeError):
        pickle.dumps(CredentialProvider(S3Options(), url="s3://b"))
