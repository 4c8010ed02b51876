"""What an object store's refusal means: HTTP status and error code to `storage.errors`, once for all clients."""

from __future__ import annotations

import errno
import re
import socket
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from storage.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigurationError,
    ConnectionFailed,
    CredentialsExpired,
    DeadlineExceeded,
    InvalidRange,
    NotFound,
    ObjectChanged,
    ProtocolViolation,
    ServerError,
    StorageError,
    StoreError,
    Throttled,
)

__all__ = [
    "MAX_ERROR_BYTES",
    "MAX_PAGE_BYTES",
    "NO_BUCKET",
    "connection_failed",
    "is_redirect",
    "may_have_expired",
    "parse_time",
    "redirect",
    "refusal",
    "too_long",
    "wrong_region",
]

MAX_ERROR_BYTES = 64 << 10
# A page has 1,000 keys of 1,024 bytes at most, each byte perhaps written as an XML entity, and its markup.
MAX_PAGE_BYTES = 16 << 20
_CLOCK = "this machine's clock is off, so the store refuses its signatures"
_SET_CLOCK = "set it, by `timedatectl set-ntp true` or chrony"
_MISSIGNED, _REDIRECTED = "the region is wrong", "the region or endpoint is wrong"
_SERVER = re.compile(r"https?://[^/?#\s\"',)]+")
# Where several addresses were tried, asyncio tells in words only, as obstore does always.
_REFUSED = (f"[Errno {errno.ECONNREFUSED}]", "Connection refused", "ConnectionRefused")
_UNRESOLVED = ("dns error", "failed to lookup address", "Name or service not known")
_REGION = (_MISSIGNED, _REDIRECTED)
NO_BUCKET = "no such bucket"  # unlike a missing key, an error for a delete, too

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html#ErrorCodeList
_CODES: dict[str, tuple[type[StorageError], str]] = {
    "NoSuchKey": (NotFound, "no such key"),
    "NoSuchBucket": (NotFound, NO_BUCKET),
    "BlobNotFound": (NotFound, "no such key"),  # Azure
    "ContainerNotFound": (NotFound, NO_BUCKET),  # Azure
    "NoSuchUpload": (StoreError, "the multipart upload is gone"),
    "AccessDenied": (AccessDenied, "access denied"),
    "AllAccessDisabled": (AccessDenied, "access to this bucket is disabled"),
    "AccountProblem": (AccessDenied, "there is a problem with the account"),
    "InvalidAccessKeyId": (
        AccessDenied,
        "the store does not know the access key: check access_key_id, whether it was deleted, and endpoint_url",
    ),
    "SignatureDoesNotMatch": (
        AccessDenied,
        "the secret key does not fit the access key: check secret_access_key for characters lost in copying",
    ),
    "ExpiredToken": (CredentialsExpired, "the session token has expired"),
    "ExpiredTokenException": (CredentialsExpired, "the session token has expired"),
    "InvalidToken": (CredentialsExpired, "the session token is invalid"),
    "TokenRefreshRequired": (CredentialsExpired, "the session token must be refreshed"),
    "RequestExpired": (CredentialsExpired, "the request's signature has expired"),
    "RequestTimeTooSkewed": (AccessDenied, _CLOCK),
    "AuthorizationHeaderMalformed": (ConfigurationError, _MISSIGNED),
    "AuthorizationQueryParametersError": (ConfigurationError, _MISSIGNED),
    "IllegalLocationConstraintException": (ConfigurationError, _MISSIGNED),
    "PermanentRedirect": (ConfigurationError, _REDIRECTED),
    "TemporaryRedirect": (ConfigurationError, _REDIRECTED),
    "InvalidBucketName": (ConfigurationError, "the bucket's name is invalid"),
    "KeyTooLongError": (ConfigurationError, "the key is too long"),
    "EntityTooLarge": (StoreError, "the object is too large for one request"),
    "InvalidRange": (InvalidRange, "the object is shorter"),
    "SlowDown": (Throttled, "the store asks for fewer requests"),
    "Throttling": (Throttled, "the store asks for fewer requests"),
    "ThrottlingException": (Throttled, "the store asks for fewer requests"),
    "RequestLimitExceeded": (Throttled, "the store asks for fewer requests"),
    "TooManyRequests": (Throttled, "the store asks for fewer requests"),
    "RequestTimeout": (DeadlineExceeded, "the store waited too long for the request's bytes"),
    "InternalError": (ServerError, "the store failed"),
}


def _by_status(status: int) -> tuple[type[StorageError], str]:
    match status:
        case _ if is_redirect(status):
            return ConfigurationError, _REDIRECTED
        case 400:
            return StoreError, "the store refused the request; expired credentials and a wrong region are answered so"
        case 401 | 403:
            return AccessDenied, "access denied"
        case 404:
            return NotFound, "no such key or bucket"
        case 408:
            return DeadlineExceeded, "the store waited too long for the request"
        case 416:
            return InvalidRange, "the object is shorter"
        case 429 | 503:
            return Throttled, "the store asks for fewer requests"
        case _ if status >= 500:
            return ServerError, "the store failed"
        case _:
            return StoreError, "the store refused the request"


def refusal(
    status: int,
    code: str,
    *,
    writing: bool,
    region: str | None = None,
    machine_time: datetime | None = None,
    store_time: datetime | None = None,
) -> StorageError:
    """Classifies an answer that is not a success.

    Args:
        status: HTTP status.
        code: The ``<Code>`` of an S3 error, or "" where the answer had none.
        writing: Whether the request was a conditional put; a failed precondition then says that the key exists.
        region: The region that the store names as the right one.
        machine_time: When the request was signed, by this machine's clock.
        store_time: When it was refused, by the store's clock.

    Returns:
        An error without location: the caller fills in URL and key.
    """
    if status == 412 or (status == 409 and writing):
        if writing:
            return AlreadyExists("the key exists")
        return ObjectChanged("the object is another one now")
    # A number as code (HEAD has no body, so botocore puts the status there) says no more than the status.
    bare = not code or code.isdigit()
    error_type, what = _CODES.get(code) or _by_status(status)
    if what in _REGION:
        return wrong_region(region, what=what, got=status if bare else f"{status} {code}")
    if code == "RequestTimeTooSkewed":
        what = f"{_off_by(machine_time, store_time)}; {_SET_CLOCK}"
    return error_type(what, got=status if bare else f"{status} {code}")


def wrong_region(region: str | None, *, what: str = _REDIRECTED, got: int | str | None = None) -> ConfigurationError:
    """The error for a bucket that is elsewhere, with the option that helps."""
    advice = (
        f"the bucket is in {region!r}, so give the option region={region!r}"
        if region is not None
        else "give the option region=... with the bucket's region, or the endpoint_url that serves it"
    )
    return ConfigurationError(f"{what}: {advice}", got=got)


def too_long(limit: int) -> ProtocolViolation:
    """Returns the error for a success whose body is longer than a limit in bytes."""
    return ProtocolViolation("the answer is longer than any to this request", expected=limit)


def is_redirect(status: int) -> bool:
    """Whether a status asks for the same request elsewhere: all of 3xx but 304, which answers a condition."""
    return 300 <= status < 400 and status != 304


def redirect(status: int, *, location: str | None, region: str | None) -> ConfigurationError:
    """Returns the error for an answer that points elsewhere; no redirect is followed.

    Args:
        status: HTTP status.
        location: ``Location`` header; only its scheme and host are shown, because the rest may hold a signature.
        region: Region that the store names as the right one.
    """
    if region is not None or location is None:
        return wrong_region(region, got=status)
    try:
        parts = urlsplit(location)
        elsewhere = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        elsewhere = "a place that is no URL"
    return wrong_region(None, what=f"the store redirects to {elsewhere}, and redirects are not followed", got=status)


def connection_failed(
    error: BaseException, *, server: str | None = None, words: str = "", got: str | None = None
) -> ConnectionFailed:
    """Classifies a connection that could not be made or broke, and names the server.

    Args:
        error: What the client raised; the errors below it are looked at, too.
        server: Any URL at the server; its scheme and host are shown.
        words: What the client says, where it tells only in words.
        got: The client's name for it; the class of the error by default.
    """
    place = found[0] if (found := _SERVER.match(server or "")) else None
    below: BaseException | None = error
    why = ""
    while below is not None and not why:
        why = _unreachable(below, words)
        below = below.__cause__ or below.__context__
    if not why:
        what = f"the connection to {place} failed" if place else "the connection failed"
        return ConnectionFailed(what, got=got or type(error).__name__)
    failed = ConnectionFailed(
        f"cannot connect to {place or 'the server'}: {why}; is the server running, and is endpoint_url (or "
        "AWS_ENDPOINT_URL) right?"
    )
    failed.is_unreachable = True
    return failed


def _unreachable(error: BaseException, words: str) -> str:
    text = f"{words} {error}"
    if isinstance(error, ConnectionRefusedError) or any(sign in text for sign in _REFUSED):
        return "connection refused"
    if isinstance(error, socket.gaierror) or any(sign in text for sign in _UNRESOLVED):
        return "the host's name does not resolve"
    return ""


def may_have_expired(error: StorageError) -> bool:
    """Whether other credentials may help: the store says so, or says nothing but a status (as to every HEAD)."""
    if isinstance(error, AccessDenied) and "InvalidAccessKeyId" in str(error.got):
        return True  # keys that were rotated: the old ones are deleted before they expire
    return isinstance(error, CredentialsExpired) or (
        isinstance(error, AccessDenied | StoreError) and error.got in (400, 401, 403)
    )


def parse_time(text: str | None) -> datetime | None:
    """Reads a time as S3 writes it: in a signature (20151021T072800Z), in XML (ISO 8601), in a Date header."""
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            time = read(text or "")
        except ValueError:
            continue
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    return None


def _off_by(machine_time: datetime | None, store_time: datetime | None) -> str:
    if machine_time is None or store_time is None:
        return _CLOCK
    seconds = round((machine_time - store_time).total_seconds())
    minutes, hours = abs(seconds) // 60, abs(seconds) // 3600
    much = f"{abs(seconds)} s" if minutes < 2 else f"{minutes} min" if hours < 3 else f"{hours} h"
    return f"{_CLOCK}: it is {much} {'ahead of' if seconds > 0 else 'behind'} the store's"
