from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from concurrent_loader.doctor.finding import Finding, Level
from concurrent_loader.doctor.identity import check_credentials, check_expiry
from concurrent_loader.storage.errors import AccessDenied
from concurrent_loader.storage.stores.aws.credentials import S3Credentials
from concurrent_loader.storage.stores.options import S3Options

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEYS = {"access_key_id": "AKIA-NOT-TO-BE-SHOWN", "secret_access_key": "secret-not-to-be-shown"}


async def found(options: S3Options, keys: S3Credentials | None = None, deadline_s: float = 5.0) -> Finding:
    def chain(profile: str | None) -> S3Credentials:
        if keys is None:
            raise AccessDenied("no usable AWS credentials")
        return keys

    finding = await check_credentials(options, url="s3://b", deadline_s=deadline_s, chain=chain, now=lambda: NOON)
    assert "not-to-be-shown" not in str(finding).lower()
    return finding


async def test_given_keys() -> None:
    assert (await found(S3Options(**KEYS))).level is Level.OK
    assert (await found(S3Options(**KEYS, session_token="t"))).level is Level.WARN


async def test_functions_and_nobody() -> None:
    assert (await found(S3Options(credentials=lambda: KEYS))).facts == {"source": "function"}
    assert (await found(S3Options(anonymous=True))).facts == {"source": "anonymous"}


async def test_the_chain_has_none() -> None:
    finding = await found(S3Options())
    assert finding.level is Level.FAIL
    assert finding.advice


async def test_the_chain_has_keys_with_an_end() -> None:
    keys = S3Credentials(KEYS["access_key_id"], KEYS["secret_access_key"], "t", NOON + timedelta(hours=6))
    finding = await found(S3Options(), keys)
    assert finding.level is Level.OK
    assert finding.facts["left_s"] == 6 * 3600


async def test_a_chain_that_does_not_answer_is_left_at_the_deadline() -> None:
    may_end = threading.Event()

    def chain(profile: str | None) -> S3Credentials:
        may_end.wait(60)
        raise AccessDenied("too late")

    try:
        finding = await check_credentials(S3Options(), url="s3://b", deadline_s=0.1, chain=chain)
    finally:
        may_end.set()
    assert finding.level is Level.FAIL
    assert "did not answer" in finding.message


@pytest.mark.parametrize(
    ("left", "level", "said"),
    [
        (None, Level.OK, "without expiry"),
        (timedelta(hours=12), Level.OK, "12 h"),
        (timedelta(minutes=20), Level.OK, "20 min; renewed"),
        (timedelta(seconds=-1), Level.FAIL, "expired"),
    ],
)
def test_expiry(left: timedelta | None, level: Level, said: str) -> None:
    finding = check_expiry(None if left is None else NOON + left, now=NOON)
    assert finding.level is level
    assert said in finding.message
