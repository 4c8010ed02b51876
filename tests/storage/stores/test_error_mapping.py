from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from concurrent_loader.storage.errors import (
    AccessDenied,
    ConfigurationError,
    CredentialsExpired,
    NotFound,
    StoreError,
    Throttled,
)
from concurrent_loader.storage.stores.error_mapping import may_have_expired, parse_time, refusal

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    ["20260101T120000Z", "2026-01-01T12:00:00Z", "2026-01-01T12:00:00.000Z", "Thu, 01 Jan 2026 12:00:00 GMT"],
)
def test_times_as_s3_writes_them(text):
    assert parse_time(text) == NOON


@pytest.mark.parametrize("text", [None, "", "soon", "99"])
def test_what_is_no_time(text):
    assert parse_time(text) is None


@pytest.mark.parametrize(
    ("off", "said"),
    [
        (timedelta(seconds=-1000), "16 min behind"),
        (timedelta(seconds=90), "90 s ahead of"),
        (timedelta(hours=26), "26 h ahead of"),
    ],
)
def test_a_clock_that_is_off(off, said):
    error = refusal(403, "RequestTimeTooSkewed", writing=False, machine_time=NOON + off, store_time=NOON)
    assert said in str(error)
    assert "timedatectl" in str(error)
    assert not may_have_expired(error)


@pytest.mark.parametrize(
    ("status", "code", "kind", "renewable"),
    [
        (400, "ExpiredToken", CredentialsExpired, True),
        (403, "InvalidAccessKeyId", AccessDenied, True),
        (400, "400", StoreError, True),  # to a HEAD
        (403, "", AccessDenied, True),
        (403, "AccessDenied", AccessDenied, False),
        (403, "SignatureDoesNotMatch", AccessDenied, False),
        (404, "404", NotFound, False),
        (503, "SlowDown", Throttled, False),
        (301, "PermanentRedirect", ConfigurationError, False),
    ],
)
def test_what_other_credentials_may_help(status, code, kind, renewable):
    error = refusal(status, code, writing=False)
    assert type(error) is kind
    assert may_have_expired(error) is renewable
