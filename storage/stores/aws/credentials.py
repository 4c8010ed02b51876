"""Validates temporary credentials, and schedules their renewal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from concurrent_loader.storage.checked_url import text_error
from concurrent_loader.storage.errors import AccessDenied, ConfigurationError

__all__ = [
    "S3Credentials",
    "check_header_safe",
    "check_not_expired",
    "checked",
    "function_name",
    "refresh_at",
    "retry_at",
]

_MARGIN = timedelta(minutes=10)
_MARGIN_SHARE = 0.2
_RETRY = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Credentials for S3, as returned by a ``credentials=`` function. Keys and token never appear in the repr.

    Attributes:
        access_key_id: ID of the access key.
        secret_access_key: Secret of the access key.
        session_token: Token of temporary credentials. Default: None.
        expires_at: Time of expiry, with a time zone. Default: None, which means never.

    Example:
        >>> from datetime import UTC, datetime
        >>> from concurrent_loader.storage import S3Credentials
        >>> S3Credentials("id", "secret", "token", expires_at=datetime(2030, 1, 1, tzinfo=UTC))
        S3Credentials(expires_at=datetime.datetime(2030, 1, 1, 0, 0, tzinfo=datetime.timezone.utc))
    """

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at: datetime | None = None


def function_name(function: Callable[..., object]) -> str:
    """Returns a function's name for errors. Avoids its repr, which may show bound arguments."""
    named = getattr(function, "func", function)  # functools.partial
    name = getattr(named, "__qualname__", None) or type(named).__qualname__
    return f"{getattr(named, '__module__', None) or type(named).__module__}.{name}"


def checked(given: object, *, by: str) -> S3Credentials:
    """Validates the result of a credentials function. Errors never repeat a value.

    Args:
        given: `S3Credentials`, or a mapping with the same names.
        by: Name of the function, for errors.

    Raises:
        ConfigurationError: ``given`` has the wrong type, or a field is missing, unknown or of the wrong type.
    """
    names = [part.name for part in fields(S3Credentials)]
    if isinstance(given, S3Credentials):
        given = {name: getattr(given, name) for name in names}
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{by} must return S3Credentials, or a mapping of {', '.join(names)}", got=type(given).__name__
        )
    if unknown := sorted(str(name) for name in given if name not in names):
        raise ConfigurationError(f"{by} must return {', '.join(names)}", got=unknown)
    for name in names[:3]:
        value: Any = given.get(name)
        if not isinstance(value, str) or not value:
            if name == "session_token" and value is None:
                continue
            raise ConfigurationError(f"{by} must return text as {name}", got=type(value).__name__)
    expires_at = given.get("expires_at")
    if expires_at is not None and (not isinstance(expires_at, datetime) or expires_at.tzinfo is None):
        raise ConfigurationError(
            f"{by} must return expires_at as a datetime with a time zone, or None", got=type(expires_at).__name__
        )
    return S3Credentials(**dict(given))


def check_not_expired(keys: S3Credentials, *, by: str, now: datetime) -> None:
    """Rejects credentials that have already expired.

    Raises:
        AccessDenied: The credentials have expired.
    """
    if keys.expires_at is not None and keys.expires_at <= now:
        raise AccessDenied(
            f"{by} returned credentials that expired {(now - keys.expires_at).total_seconds():.0f} s ago by this "
            "machine's clock"
        )


def check_header_safe(keys: S3Credentials, *, by: str) -> None:
    """Rejects credentials that cannot be sent in a header, such as a key with a trailing newline.

    Raises:
        ConfigurationError: A value contains invalid characters.
    """
    for name in ("access_key_id", "secret_access_key", "session_token"):
        value = getattr(keys, name)
        refused = None if value is None else text_error(value, name=f"{name} from {by}")
        if refused is not None:
            del value
            raise refused


def refresh_at(expires_at: datetime | None, *, now: datetime) -> datetime | None:
    """Returns when to renew credentials: 10 minutes before expiry, or when a fifth of a shorter lifetime is left.

    Args:
        expires_at: Expiry of credentials that were received at ``now``.
        now: Current time.

    Returns:
        Time of the renewal; None for never. Credentials with little time left (metadata services return old ones for a
        while) are renewed at decreasing intervals, never on every request.
    """
    if expires_at is None:
        return None
    return expires_at - min(_MARGIN, (expires_at - now) * _MARGIN_SHARE)


def retry_at(expires_at: datetime | None, *, now: datetime) -> datetime | None:
    """Returns when to retry a failed renewal: within a minute, and before the old credentials expire."""
    return None if expires_at is None else now + min(_RETRY, (expires_at - now) * _MARGIN_SHARE)
