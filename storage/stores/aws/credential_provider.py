"""Provides a store's credentials from options, a user's function or the AWS chain, and renews them before expiry.

Each store has one provider, whatever its client. aiobotocore and s3fs use it through `AiobotocoreCredentials`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from concurrent_loader.storage.errors import AccessDenied, StorageError
from concurrent_loader.storage.redaction import redact as without_secrets
from concurrent_loader.storage.redaction import remember, silence_secrets
from concurrent_loader.storage.secret import is_lost, reveal
from concurrent_loader.storage.stores.aws.credentials import (
    S3Credentials,
    check_header_safe,
    check_not_expired,
    checked,
    function_name,
    refresh_at,
    retry_at,
)
from concurrent_loader.storage.stores.options import S3Options

__all__ = ["ActiveCredentials", "CredentialProvider"]

_log = logging.getLogger(__name__)
# Limits calls to the STS while a store keeps rejecting requests.
_BETWEEN_DEMANDS = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class ActiveCredentials:
    """Credentials in use.

    Attributes:
        keys: Credentials used to sign requests.
        generation: Number that increases whenever the credentials change.
        refresh_at: Time of the next renewal; None for never.
    """

    keys: S3Credentials
    generation: int
    refresh_at: datetime | None


class CredentialProvider:
    """Provides and renews the credentials of a store.

    A renewal runs on a thread of its own, and all waiting requests share it. If a renewal fails while the old
    credentials are still valid, the failure is logged once, and the old credentials stay in use.

    Args:
        options: Options with keys, a function or a profile. By default, the standard AWS chain is used.
        url: URL of the store, for errors.
        clock: Function that returns the current time, with a time zone.

    Thread-safety: All methods are thread-safe, and usable from any event loop.
    """

    def __init__(
        self, options: S3Options, *, url: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._options = options
        self._url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: Future[ActiveCredentials | StorageError] | None = None
        self._held: ActiveCredentials | None = None
        self._demanded_at: datetime | None = None
        self._warned = False
        self._lost = is_lost(options.access_key_id) or is_lost(options.secret_access_key)
        if options.access_key_id is not None and not self._lost:
            keys = S3Credentials(
                reveal(options.access_key_id), reveal(options.secret_access_key), reveal(options.session_token)
            )
            self._held = ActiveCredentials(keys, 0, None)
        self.renewable = self._held is None and not options.anonymous
        """Whether a renewal can return different credentials."""

    def get(self) -> ActiveCredentials:
        """Returns valid credentials. May block.

        Raises:
            AccessDenied: No credentials are available.
            ConfigurationError: The profile, the AWS files or the credentials function are invalid.
        """
        return self._current() or _outcome(self._ask().result())

    async def get_async(self) -> ActiveCredentials:
        """Returns valid credentials without blocking the event loop. Raises as `get`.

        Cancellation: The renewal continues for other waiting requests.
        """
        return self._current() or _outcome(await asyncio.shield(asyncio.wrap_future(self._ask())))

    async def renew(self, used: ActiveCredentials) -> bool:
        """Renews credentials that a store rejected. Returns whether newer ones are available.

        Args:
            used: Credentials of the rejected request.
        """
        if not self.renewable:
            return False
        if self._is_newer(used):
            return True
        with self._lock:
            asking, now = self._asking, self._clock()
            if asking is None:
                if self._demanded_at is not None and now - self._demanded_at < _BETWEEN_DEMANDS:
                    return False
                self._demanded_at = now
        await asyncio.shield(asyncio.wrap_future(asking or self._ask()))
        return self._is_newer(used)

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a CredentialProvider holds secrets and cannot be pickled")

    def _is_newer(self, used: ActiveCredentials) -> bool:
        held = self._held
        return held is not None and held.generation != used.generation

    def _current(self) -> ActiveCredentials | None:
        held = self._held
        if held is None or (held.refresh_at is not None and held.refresh_at <= self._clock()):
            return None
        return held

    def _ask(self) -> Future[ActiveCredentials | StorageError]:
        with self._lock:
            if self._asking is None:
                asking: Future[ActiveCredentials | StorageError] = Future()
                # A thread of its own: the function may block for long, and must not block an event loop.
                threading.Thread(target=self._answer, args=(asking,), name="storage-credentials", daemon=True).start()
                self._asking = asking  # after the start: a future without a thread would never complete
            return self._asking

    def _answer(self, asking: Future[ActiveCredentials | StorageError]) -> None:
        outcome: ActiveCredentials | StorageError
        try:
            outcome = self._accept(self._question())
        except StorageError as error:
            outcome = self._fall_back(error)
        except BaseException as error:  # noqa: BLE001 - raised in the waiting requests
            outcome = self._fall_back(AccessDenied("the renewal of credentials failed", got=type(error).__name__))
        with self._lock:
            self._asking = None
        asking.set_result(outcome)

    def _question(self) -> S3Credentials:
        silence_secrets()  # in the log lines of the libraries used below
        function = self._options.credentials
        if function is None:
            # Imported on demand: botocore takes a tenth of a second to load.
            from concurrent_loader.storage.stores.aws.botocore_chain import chain_credentials

            try:
                return chain_credentials(self._options.profile, url=self._url)
            except AccessDenied as error:
                if self._lost:
                    reveal(self._options.secret_access_key)
                raise error from error.__cause__
        by = function_name(function)
        try:
            given = function()
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            # Not as a cause: its message may contain the secret.
            got = f"{type(error).__name__} at {_place(error)}"
            failure = AccessDenied(f"the credentials function {by} failed", got=got)
        else:
            return checked(given, by=f"the credentials function {by}")
        raise failure

    def _accept(self, keys: S3Credentials) -> ActiveCredentials:
        now, held = self._clock(), self._held
        if keys.expires_at is not None:
            keys = replace(keys, expires_at=keys.expires_at.astimezone(UTC))
        by = "the credentials function" if self._options.credentials else "the AWS chain"
        check_header_safe(keys, by=by)
        check_not_expired(keys, by=by, now=now)
        remember(keys.secret_access_key, keys.session_token)
        same = held is not None and replace(held.keys, expires_at=keys.expires_at) == keys
        generation = 0 if held is None else held.generation + (not same)
        self._held = ActiveCredentials(keys, generation, refresh_at(keys.expires_at, now=now))
        self._warned = False
        return self._held

    def _fall_back(self, error: StorageError) -> ActiveCredentials | StorageError:
        now, held = self._clock(), self._held
        expires_at = None if held is None else held.keys.expires_at
        error.locate(url=self._url)
        if held is None or (expires_at is not None and expires_at <= now):
            return error
        if not self._warned:
            self._warned = True
            until = "" if expires_at is None else f" until they expire at {expires_at.isoformat(timespec='seconds')}"
            _log.warning("%s; the old credentials stay in use%s", without_secrets(str(error)), until)
        self._held = ActiveCredentials(held.keys, held.generation, retry_at(expires_at, now=now))
        return self._held


def _outcome(outcome: ActiveCredentials | StorageError) -> ActiveCredentials:
    """Returns credentials, or raises a copy of an error, because each waiting request adds its own location."""
    if isinstance(outcome, ActiveCredentials):
        return outcome
    error: StorageError = copy.copy(outcome)
    raise error from outcome.__cause__


def _place(error: BaseException) -> str:
    """Returns the file and line where an exception was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    return f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
