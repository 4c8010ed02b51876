from __future__ import annotations

import io
import logging
import traceback

import pytest

from concurrent_loader.storage.errors import StorageError, StoreError
from concurrent_loader.storage.redaction import (
    MASK,
    RedactSecrets,
    redact,
    redact_error,
    redact_url,
    remember,
    silence_secrets,
)
from concurrent_loader.storage.secret import Secret

VALUE = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzEXAMPLE"


@pytest.mark.parametrize(
    "line",
    [
        "headers={'X-Amz-Security-Token': b'%s', 'Host': 'h'}",
        "{'Authorization': 'AWS4-HMAC-SHA256 Credential=%s, Signature=1'}",
        '{"accessToken": "%s", "expiresIn": 3}',
        '{"SecretAccessKey" : "%s"}',
        "<AccessKeyId>A</AccessKeyId><SecretAccessKey>%s</SecretAccessKey>",
        "<Code>ExpiredToken</Code><Token-0>%s</Token-0>",
        "<SessionToken>%s</SessionToken>",
        "GET\n/\n\nhost:h\nx-amz-security-token:%s\n\nhost",
        "PUT /latest/api/token HTTP/1.1\nX-aws-ec2-metadata-token: %s",
        "https://h/k?a=1&X-Amz-Signature=%s&b=2",
        "https://h/k?sv=1&sig=%s",
        "https://h/k?access_token=%s",
        "http://user:%s@proxy:3128/",
    ],
)
def test_known_places_of_secrets_are_masked(line):
    unseen = "Q29ycmVjdEhvcnNlQmF0dGVyeVN0YXBsZQ"
    masked = redact(line % unseen)
    assert unseen not in masked
    assert MASK in masked
    assert redact(masked) == masked


@pytest.mark.parametrize(
    "text", ["", "nothing", "https://host/path?list-type=2&prefix=a", "got='403 AccessDenied'", "a=b"]
)
def test_other_text_stays(text):
    assert redact(text) == redact_url(text) == text


def test_known_values_are_masked_wherever_they_stand():
    remember("tok/en+with=odd&chars")
    assert redact("a tok/en+with=odd&chars b") == f"a {MASK} b"
    assert redact("a tok%2Fen%2Bwith%3Dodd%26chars b") == f"a {MASK} b"
    remember("short", None, 17)
    assert redact("short") == "short"


def raised(*, cause):
    try:
        try:
            raise cause
        except Exception as error:
            raise StoreError("it failed", got=f"token {VALUE}") from error
    except StorageError as error:
        return error


class Stubborn(Exception):
    def __str__(self):
        return f"always {VALUE}"


@pytest.mark.parametrize("cause", [ValueError(VALUE), OSError(5, VALUE), Stubborn(), KeyError(VALUE)])
def test_an_error_and_its_causes_are_made_presentable(cause):
    Secret(VALUE)
    below = ValueError(f"below {VALUE}")
    cause.__cause__ = below
    error = raised(cause=cause)
    redact_error(error)
    assert VALUE not in "".join(traceback.format_exception(error)) + repr(error)
    assert type(error.__cause__) in (type(cause), Exception)
    step = error
    while step is not None:
        assert VALUE not in f"{step!r}{step!s}{step.args}"
        step = step.__context__ or step.__cause__


def test_harmless_causes_stay_as_they_are():
    cause = ValueError("harmless")
    error = raised(cause=cause)
    redact_error(error)
    assert error.__cause__ is cause
    assert cause.args == ("harmless",)


@pytest.fixture
def log():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    logger = logging.getLogger("botocore.pretended")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield logger, stream
    logger.removeHandler(handler)


def test_vendors_logs_are_masked(log):
    logger, stream = log
    silence_secrets()
    silence_secrets()
    assert sum(isinstance(each, RedactSecrets) for each in logger.filters) == 1
    Secret(VALUE)
    logger.debug("signing with %s", VALUE)
    logger.debug("headers %r", {"Authorization": "AWS4 unseen"})
    logger.debug("plain %d", 3)
    logger.debug("no args at all %")
    try:
        raise ValueError(VALUE)
    except ValueError:
        logger.exception("failed")
    said = stream.getvalue()
    assert VALUE not in said
    assert "unseen" not in said
    for expected in ("plain 3", "no args at all %", "ValueError", "failed"):
        assert expected in said


def test_a_log_call_that_does_not_fit_is_left_to_the_handler(log):
    assert RedactSecrets().filter(logging.LogRecord("x", 10, "", 1, "%d", ("text",), None))
