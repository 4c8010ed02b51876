"""What an object store's refusal means: HTTP status and error code to `storage.errors`, once for all clients."""

from __future__ import annotations

from storage.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigurationError,
    DeadlineExceeded,
    InvalidRange,
    NotFound,
    ObjectChanged,
    ServerError,
    StorageError,
    StoreError,
    Throttled,
)

__all__ = ["NO_BUCKET", "refusal"]

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
    "InvalidAccessKeyId": (AccessDenied, "the access key is unknown"),
    "SignatureDoesNotMatch": (AccessDenied, "the secret key does not fit the access key"),
    "ExpiredToken": (AccessDenied, "the session token has expired"),
    "ExpiredTokenException": (AccessDenied, "the session token has expired"),
    "InvalidToken": (AccessDenied, "the session token is invalid"),
    "TokenRefreshRequired": (AccessDenied, "the session token must be refreshed"),
    "RequestTimeTooSkewed": (AccessDenied, "this machine's clock is off: the store refuses its signatures"),
    "AuthorizationHeaderMalformed": (ConfigurationError, "the region is wrong"),
    "AuthorizationQueryParametersError": (ConfigurationError, "the region is wrong"),
    "IllegalLocationConstraintException": (ConfigurationError, "the region is wrong"),
    "PermanentRedirect": (ConfigurationError, "the region or endpoint is wrong"),
    "TemporaryRedirect": (ConfigurationError, "the region or endpoint is wrong"),
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
        case 301 | 307 | 308:
            return ConfigurationError, "the region or endpoint is wrong"
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


def refusal(status: int, code: str, *, writing: bool, region: str | None = None) -> StorageError:
    """Classifies an answer that is not a success.

    Args:
        status: HTTP status.
        code: The ``<Code>`` of an S3 error, or "" where the answer had none.
        writing: Whether the request was a conditional put; a failed precondition then says that the key exists.
        region: The region that the store names as the right one.

    Returns:
        An error without location: the caller fills in URL and key.
    """
    if status == 412 or (status == 409 and writing):
        if writing:
            return AlreadyExists("the key exists")
        return ObjectChanged("the object is another one now")
    # A number as code (HEAD has no body, so botocore puts the status there) says no more than the status.
    error_type, what = _CODES.get(code) or _by_status(status)
    if region is not None and error_type is ConfigurationError:
        what = f"{what}: the bucket is in {region!r}"
    return error_type(what, got=f"{status} {code}".strip() if not code.isdigit() else status)
