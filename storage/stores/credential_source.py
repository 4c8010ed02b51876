"""Keys for a store's requests, from its options, a function of the user's, or the AWS chain; renewed before they end.

One source a store, whatever the client: obstore calls it, aiobotocore and s3fs sign with `signing_keys` on top of it.
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

from storage.errors import AccessDenied, StorageError
from storage.log_redaction import silence_secrets
from storage.secrets import is_lost, remember, reveal
from storage.secrets import redact as without_secrets
from storage.stores.credentials import (
    S3Credentials,
    check_fresh,
    check_sendable,
    checked,
    name_of,
    refresh_at,
    retry_at,
)
from storage.stores.options import S3Options

__all__ = ["CredentialSource", "Held"]

_log = logging.getLogger(__name__)
# A store that goes on refusing is not a reason to ask the STS at the rate of the requests.
_BETWEEN_DEMANDS = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Held:
    """Keys in use.

    Attributes:
        keys: They.
        generation: Which ones; counts up when they change.
        refresh_at: When the next ones are due; None if never.
    """

    keys: S3Credentials
    generation: int
    refresh_at: datetime | None


class CredentialSource:
    """The keys that a store signs with.

    Asking happens on a thread that lives no longer than the question, and once however many requests wait. While the
    old keys hold, a question that fails is logged once and they stay in use.

    Args:
        options: Keys, a function, a profile, or none of them for the standard chain.
        url: The store's, for errors.
        clock: The time, with a time zone.

    Thread-safety: All methods, from any thread and event loop.
    """

    # obstore asks for new keys that long before the date it is told; that date leaves time enough already.
    refresh_threshold = timedelta(0)

    def __init__(
        self, options: S3Options, *, url: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._options = options
        self._url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: Future[Held | StorageError] | None = None
        self._held: Held | None = None
        self._demanded_at: datetime | None = None
        self._warned = False
        self._lost = is_lost(options.access_key_id) or is_lost(options.secret_access_key)
        self.failure: StorageError | None = None
        """Why the last question gave no keys: obstore passes on no more than the words of an exception."""
        if options.access_key_id is not None and not self._lost:
            keys = S3Credentials(
                reveal(options.access_key_id), reveal(options.secret_access_key), reveal(options.session_token)
            )
            self._held = Held(keys, 0, None)
        self.renewable = self._held is None and not options.anonymous
        """Whether asking again can give other keys."""

    def get(self) -> Held:
        """Returns keys that hold; may block.

        Raises:
            AccessDenied: There are none.
            ConfigurationError: What should give them cannot.
        """
        return self._current() or _outcome(self._ask().result())

    async def get_async(self) -> Held:
        """The same for an event loop.

        Cancellation: The question goes on for the others who wait for it.
        """
        return self._current() or _outcome(await asyncio.shield(asyncio.wrap_future(self._ask())))

    async def renew(self, used: Held) -> bool:
        """Asks for other keys because a store refused these; says whether there are other ones now.

        Args:
            used: What the refused request was signed with.
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

    def __call__(self) -> dict[str, object]:
        """Returns keys in obstore's form; obstore calls from a thread of its own runtime."""
        held = self.get()
        return {
            "access_key_id": held.keys.access_key_id,
            "secret_access_key": held.keys.secret_access_key,
            "token": held.keys.session_token,
            "expires_at": held.refresh_at,
        }

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a CredentialSource holds keys and is not pickled")

    def _is_newer(self, used: Held) -> bool:
        held = self._held
        return held is not None and held.generation != used.generation

    def _current(self) -> Held | None:
        held = self._held
        if held is None or (held.refresh_at is not None and held.refresh_at <= self._clock()):
            return None
        return held

    def _ask(self) -> Future[Held | StorageError]:
        with self._lock:
            if self._asking is None:
                asking: Future[Held | StorageError] = Future()
                # A thread of its own: the function may block for long, and must hold up neither a loop nor its pool.
                threading.Thread(target=self._answer, args=(asking,), name="storage-credentials", daemon=True).start()
                self._asking = asking  # only now: one without a thread would never be answered
            return self._asking

    def _answer(self, asking: Future[Held | StorageError]) -> None:
        outcome: Held | StorageError
        try:
            outcome = self._accept(self._question())
        except StorageError as error:
            outcome = self._fall_back(error)
        except BaseException as error:  # noqa: BLE001 - handed to those who wait
            outcome = self._fall_back(AccessDenied("asking for credentials failed", got=type(error).__name__))
        with self._lock:
            self._asking = None
        asking.set_result(outcome)

    def _question(self) -> S3Credentials:
        silence_secrets()  # of what the question makes its libraries log
        function = self._options.credentials
        if function is None:
            # Imported where it is asked: botocore's configuration takes a tenth of a second to load.
            from storage.stores.aws_chain import chain_credentials

            try:
                return chain_credentials(self._options.profile, url=self._url)
            except AccessDenied as error:
                if self._lost:
                    reveal(self._options.secret_access_key)
                raise error from error.__cause__
        by = name_of(function)
        try:
            given = function()
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            # Not as a cause: what it says may hold what it was asked for.
            got = f"{type(error).__name__} at {_place(error)}"
            failure = AccessDenied(f"the credentials function {by} failed", got=got)
        else:
            return checked(given, by=f"the credentials function {by}")
        raise failure

    def _accept(self, keys: S3Credentials) -> Held:
        now, held = self._clock(), self._held
        if keys.expires_at is not None:
            keys = replace(keys, expires_at=keys.expires_at.astimezone(UTC))  # obstore takes no other zone
        by = "the credentials function" if self._options.credentials else "the AWS chain"
        check_sendable(keys, by=by)
        check_fresh(keys, by=by, now=now)
        remember(keys.secret_access_key, keys.session_token)
        same = held is not None and replace(held.keys, expires_at=keys.expires_at) == keys
        generation = 0 if held is None else held.generation + (not same)
        self._held = Held(keys, generation, refresh_at(keys.expires_at, now=now))
        self._warned, self.failure = False, None
        return self._held

    def _fall_back(self, error: StorageError) -> Held | StorageError:
        now, held = self._clock(), self._held
        expires_at = None if held is None else held.keys.expires_at
        error.locate(url=self._url)
        if held is None or (expires_at is not None and expires_at <= now):
            self.failure = error
            return error
        if not self._warned:
            self._warned = True
            until = "" if expires_at is None else f" until they expire at {expires_at.isoformat(timespec='seconds')}"
            _log.warning("%s; going on with the old ones%s", without_secrets(str(error)), until)
        self._held = Held(held.keys, held.generation, retry_at(expires_at, now=now))
        return self._held


def _outcome(outcome: Held | StorageError) -> Held:
    """Raises a copy: each of those who wait adds facts of its own."""
    if isinstance(outcome, Held):
        return outcome
    error: StorageError = copy.copy(outcome)
    raise error from outcome.__cause__


def _place(error: BaseException) -> str:
    """File and line where an exception was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    return f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
