"""Keys with a date: what a vault or an STS hands out, checked, and when to ask for the next ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from storage.checked_url import text_error
from storage.errors import AccessDenied, ConfigurationError

__all__ = ["S3Credentials", "check_fresh", "check_sendable", "checked", "name_of", "refresh_at", "retry_at"]

_MARGIN = timedelta(minutes=10)
_MARGIN_SHARE = 0.2
_RETRY = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """What a ``credentials=`` function returns.

    Attributes:
        access_key_id: Never shown, as the others.
        secret_access_key: Belongs to it.
        session_token: Of temporary keys.
        expires_at: With a time zone; None if they hold for ever.
    """

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at: datetime | None = None


def name_of(function: Callable[..., object]) -> str:
    """What to call a function in an error: never its repr, which may show arguments that are bound to it."""
    named = getattr(function, "func", function)  # functools.partial
    name = getattr(named, "__qualname__", None) or type(named).__qualname__
    return f"{getattr(named, '__module__', None) or type(named).__module__}.{name}"


def checked(given: object, *, by: str) -> S3Credentials:
    """Makes typed keys of what a function returned; no error repeats a value.

    Args:
        given: `S3Credentials`, or a mapping of the same names.
        by: The function's name.

    Raises:
        ConfigurationError: It is neither, or a field is missing, unknown or of the wrong type.
    """
    names = [part.name for part in fields(S3Credentials)]
    if isinstance(given, S3Credentials):
        given = {name: getattr(given, name) for name in names}
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{by} returns S3Credentials, or a mapping of {', '.join(names)}", got=type(given).__name__
        )
    if unknown := sorted(str(name) for name in given if name not in names):
        raise ConfigurationError(f"{by} returns {', '.join(names)}", got=unknown)
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


def check_fresh(keys: S3Credentials, *, by: str, now: datetime) -> None:
    """Refuses keys that have expired before their first use.

    Raises:
        AccessDenied: They have.
    """
    if keys.expires_at is not None and keys.expires_at <= now:
        raise AccessDenied(
            f"{by} returned credentials that expired {(now - keys.expires_at).total_seconds():.0f} s ago by this "
            "machine's clock"
        )


def check_sendable(keys: S3Credentials, *, by: str) -> None:
    """Refuses keys that cannot stand in the head of a request: with a newline at the end, say.

    Raises:
        ConfigurationError: One of them does not.
    """
    for name in ("access_key_id", "secret_access_key", "session_token"):
        value = getattr(keys, name)
        refused = None if value is None else text_error(value, name=f"{name} from {by}")
        if refused is not None:
            del value
            raise refused


def refresh_at(expires_at: datetime | None, *, now: datetime) -> datetime | None:
    """When to ask for the next keys: 10 minutes before these expire, or with a fifth of a shorter life left.

    Args:
        expires_at: Of keys that were handed out at ``now``.
        now: The present.

    Returns:
        None if never. Keys that come with little time left (a metadata service hands out old ones for a while) are
        asked for again at ever shorter distances, never on every request.
    """
    if expires_at is None:
        return None
    return expires_at - min(_MARGIN, (expires_at - now) * _MARGIN_SHARE)


def retry_at(expires_at: datetime | None, *, now: datetime) -> datetime | None:
    """When to try again after a refresh that failed while the old keys hold: within a minute, before they expire."""
    return None if expires_at is None else now + min(_RETRY, (expires_at - now) * _MARGIN_SHARE)
