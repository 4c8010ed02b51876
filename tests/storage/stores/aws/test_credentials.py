from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import AccessDenied, ConfigurationError
from concurrent_loader.storage.stores.aws.credentials import (
    S3Credentials,
    check_not_expired,
    checked,
    function_name,
    refresh_at,
    retry_at,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GOOD = {"access_key_id": "id", "secret_access_key": "very-secret", "session_token": "tok", "expires_at": NOW}
lives = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=400))


def test_both_forms_are_taken():
    assert checked(GOOD, by="f") == S3Credentials("id", "very-secret", "tok", NOW)
    assert checked(S3Credentials("id", "very-secret"), by="f") == S3Credentials("id", "very-secret", None, None)
    assert checked({"access_key_id": "id", "secret_access_key": "s"}, by="f").expires_at is None


@pytest.mark.parametrize(
    "given",
    [
        None,
        ("id", "very-secret"),
        {},
        {**GOOD, "access_key_id": ""},
        {**GOOD, "access_key_id": None},
        {**GOOD, "secret_access_key": b"very-secret"},
        {**GOOD, "session_token": 3},
        {**GOOD, "expires_at": datetime(2026, 1, 1)},
        {**GOOD, "expires_at": "2026-01-01"},
        {**GOOD, "SecretAccessKey": "very-secret"},
        S3Credentials("id", 3),
    ],
)
def test_what_is_none_is_refused_without_its_values(given):
    with pytest.raises(ConfigurationError, match="the function f") as caught:
        checked(given, by="the function f")
    assert "very-secret" not in str(caught.value)


def test_nothing_of_them_is_shown():
    shown = repr(checked(GOOD, by="f"))
    for value in ("'id'", "very-secret", "tok"):
        assert value not in shown


def test_expired_ones_are_refused():
    check_not_expired(S3Credentials("id", "s"), by="f", now=NOW)
    check_not_expired(S3Credentials("id", "s", None, NOW + timedelta(seconds=1)), by="f", now=NOW)
    with pytest.raises(AccessDenied, match="f returned credentials that expired 5 s ago"):
        check_not_expired(S3Credentials("id", "s", None, NOW - timedelta(seconds=5)), by="f", now=NOW)


@given(lives)
def test_they_are_renewed_in_time_and_not_at_once(life):
    at = refresh_at(NOW + life, now=NOW)
    assert NOW < at < NOW + life
    left = NOW + life - at
    assert left <= timedelta(minutes=10)
    assert left >= min(timedelta(minutes=10), life * 0.19)


@given(lives)
def test_a_failed_renewal_is_repeated_before_they_end(life):
    at = retry_at(NOW + life, now=NOW)
    assert NOW < at < NOW + life
    assert at - NOW <= timedelta(minutes=1)


def test_those_that_hold_for_ever_are_not_renewed():
    assert refresh_at(None, now=NOW) is None
    assert retry_at(None, now=NOW) is None


class Vault:
    def __call__(self):
        return GOOD

    def __repr__(self):
        return "Vault(very-secret)"


def test_names_show_no_arguments():
    for function in (checked, Vault(), functools.partial(checked, by="very-secret"), lambda: GOOD):
        assert "very-secret" not in function_name(function)
    assert function_name(checked) == "concurrent_loader.storage.stores.aws.credentials.checked"
    assert function_name(Vault()).endswith("Vault")
