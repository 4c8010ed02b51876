"""Maps HTTP statuses and error codes to `concurrent_loader.storage.errors`, for all clients."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigurationError,
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
    "is_redirect",
    "may_have_expired",
    "parse_time",
    "redirect",
    "refusal",
    "too_long_error",
    "wrong_region_error",
]

MAX_ERROR_BYTES = 64 << 10
# A page has at most 1,000 keys of 1,024 bytes, each byte possibly an XML entity, plus markup.
MAX_PAGE_BYTES = 16 << 20
_CLOCK = "this machine's clock is off, so the store refuses its signatures"
_SET_CLOCK = "set it, by `timedatectl set-ntp true` or chrony"
_MISSIGNED, _REDIRECTED = "the region is wrong", "the region or endpoint is wrong"
_REGION = (_MISSIGNED, _REDIRECTED)
NO_BUCKET = "no such bucket"  # unlike a missing key, also an error for a delete

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
    """Classifies a response that is not a success.

    Args:
        status: HTTP status.
        code: ``<Code>`` of the S3 error; "" if the response has none.
        writing: Whether the request was a conditional put. A failed precondition then means that the key exists.
        region: Correct region of the bucket, if the store names it.
        machine_time: Time of signing, by this machine's clock.
        store_time: Time of the response, by the store's clock.

    Returns:
        Error without a location. The caller adds the URL and key.
    """
    if status == 412 or (status == 409 and writing):
        if writing:
            return AlreadyExists("the key exists")
        return ObjectChanged("the object has changed")
    # A numeric code is just the status: HEAD has no body, so botocore uses the status as the code.
    bare = not code or code.isdigit()
    error_type, what = _CODES.get(code) or _by_status(status)
    if what in _REGION:
        return wrong_region_error(region, what=what, got=status if bare else f"{status} {code}")
    if code == "RequestTimeTooSkewed":
        what = f"{_off_by(machine_time, store_time)}; {_SET_CLOCK}"
    return error_type(what, got=status if bare else f"{status} {code}")


def wrong_region_error(
    region: str | None, *, what: str = _REDIRECTED, got: int | str | None = None
) -> ConfigurationError:
    """Returns the error for a bucket in another region, with the option that fixes it."""
    advice = (
        f"the bucket is in {region!r}, so give the option region={region!r}"
        if region is not None
        else "give the option region=... with the bucket's region, or the endpoint_url that serves it"
    )
    return ConfigurationError(f"{what}: {advice}", got=got)


def too_long_error(limit: int) -> ProtocolViolation:
    """Returns the error for a successful response whose body exceeds a limit in bytes."""
    return ProtocolViolation("the response is longer than any to this request", expected=limit)


def is_redirect(status: int) -> bool:
    """Returns whether a status is a redirect: every 3xx except 304, which answers a conditional request."""
    return 300 <= status < 400 and status != 304


def redirect(status: int, *, location: str | None, region: str | None) -> ConfigurationError:
    """Returns the error for a redirect, because redirects are never followed.

    Args:
        status: HTTP status.
        location: ``Location`` header. Only its scheme and host are shown, because the rest may hold a signature.
        region: Correct region of the bucket, if the store names it.
    """
    if region is not None or location is None:
        return wrong_region_error(region, got=status)
    try:
        parts = urlsplit(location)
        elsewhere = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        elsewhere = "an invalid URL"
    return wrong_region_error(
        None, what=f"the store redirects to {elsewhere}, and redirects are not followed", got=status
    )


def may_have_expired(error: StorageError) -> bool:
    """Returns whether new credentials may help: the store says so, or sends only a status, as for HEAD."""
    if isinstance(error, AccessDenied) and "InvalidAccessKeyId" in str(error.got):
        return True  # after a rotation, old keys may be deleted before they expire
    return isinstance(error, CredentialsExpired) or (
        isinstance(error, AccessDenied | StoreError) and error.got in (400, 401, 403)
    )


def parse_time(text: str | None) -> datetime | None:
    """Parses a time in any form that S3 uses: signature (20151021T072800Z), XML (ISO 8601) or Date header."""
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
