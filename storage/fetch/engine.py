"""Fetches many ranges at once from a store; each is retried, checked and counted."""

from __future__ import annotations

import asyncio
import math
import random
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from concurrent_loader.storage.errors import ConfigurationError, DeadlineExceeded, StorageError, Throttled
from concurrent_loader.storage.fetch.concurrency_control import MAX_AUTO
from concurrent_loader.storage.fetch.deadlines import (
    CallDeadline,
    attempt_timeout_s,
    run_with_timeout,
    wait_with_renewable_deadline,
)
from concurrent_loader.storage.fetch.endpoint import Endpoint
from concurrent_loader.storage.fetch.hedging import HedgePolicy
from concurrent_loader.storage.fetch.in_flight_gate import InFlightGate
from concurrent_loader.storage.fetch.request_sender import RequestSender
from concurrent_loader.storage.fetch.retry import RetryPolicy, call_with_retries, retry_delay_s
from concurrent_loader.storage.fetch.stats import Counters, FetchStats
from concurrent_loader.storage.fetch.transfer import RangeRequest, Transfer, Write
from concurrent_loader.storage.redaction import redact_error
from concurrent_loader.storage.sizes import Size, parse_size
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["FetchEngine", "InFlight", "check_in_flight"]

T = TypeVar("T")

InFlight = int | Literal["auto"]
_HEDGE = HedgePolicy()


class FetchEngine:
    """Fetches ranges of objects from one store, with retries, deadlines, digests and limits.

    Args:
        store: Store to fetch from. The engine does not close it.
        in_flight: Upper bound of concurrent requests, or ``"auto"`` (default) for as many as the endpoint handles, up
            to 256. All engines of one endpoint in the process share an adaptive limit; see
            docs/explanation/fetching.md. A low ``ulimit -n`` lowers the bound.
        bytes_in_flight: Upper bound of announced bytes in flight, 128 MiB by default; a larger request runs alone.
        retry: Retry policy; ``RetryPolicy()`` by default.
        hedge: Rules for hedged requests; None to send none.
        is_known: Whether the endpoint is known to exist, for example because another process has reached it. An
            unknown endpoint is given up within seconds if it is unreachable.
        counters: Counters that another engine counts in as well; by default counters of its own.
        clock: Source of monotonic seconds.
        sleep: Awaitable pause.
        rng: Source of random numbers, uniform in [0, 1).

    Cancellation: At any await. The place in flight and the connection are released.

    Thread-safety: Usable from one event loop; `stats` may be read from any thread.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import FetchEngine, open_store
        >>> store = open_store("memory://fetch-example")
        >>> meta = asyncio.run(store.put("greeting", b"hello, world"))
        >>> bytes(asyncio.run(FetchEngine(store).fetch("greeting", 7, 12)).data)
        b'world'
    """

    def __init__(
        self,
        store: Store,
        *,
        in_flight: InFlight = "auto",
        bytes_in_flight: Size = "128MiB",
        retry: RetryPolicy | None = None,
        hedge: HedgePolicy | None = _HEDGE,
        is_known: bool = False,
        counters: Counters | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Callable[[], float] = random.random,
    ) -> None:
        bound = check_in_flight(in_flight)
        self.store = store
        self.policy = RetryPolicy.of(retry)
        if hedge is not None and not isinstance(hedge, HedgePolicy):
            raise ConfigurationError("hedge must be a HedgePolicy or None", got=type(hedge).__name__)
        self.counters = counters or Counters()
        self.clock = clock
        self._gate = InFlightGate(
            max_requests=min(bound or MAX_AUTO, _most_by_descriptors()),
            max_bytes=parse_size(bytes_in_flight, name="bytes_in_flight"),
        )
        self._endpoint = Endpoint.of(store.endpoint)
        self._membership = self._endpoint.join(bound)
        self.sender = RequestSender(self._endpoint, self.counters, hedge, clock)
        self._is_known = is_known
        self.sleep = sleep
        self._rng = rng

    @property
    def limit(self) -> int:
        """Number of requests that may be in flight now: the lower of this engine's bound and the endpoint's limit."""
        return min(self._gate.max_requests, self._endpoint.limit)

    @property
    def stats(self) -> FetchStats:
        """Counters so far, and the current state."""
        return self.counters.snapshot(now_s=self.clock(), in_flight=self._gate.num_requests, limit=self._endpoint.limit)

    async def fetch(
        self,
        key: str,
        start: int,
        end: int,
        *,
        if_match: str | None = None,
        digest: int | None = None,
        object_size: int | None = None,
    ) -> GetResult:
        """Fetches one range.

        Args:
            key: Key of the object.
            start: First byte.
            end: One past the last byte.
            if_match: ETag that the object must have.
            digest: xxh3_64 of the range. After a mismatch the range is fetched once more; a second mismatch raises
                `DigestMismatch`, which states whether the same bytes arrived both times.
            object_size: Size that the whole object must have, in bytes.

        Raises:
            ObjectChanged: The object was replaced, or its size is not ``object_size``.
            StorageError: Error of the last attempt, with ``attempts`` filled in.
        """
        transfer = Transfer(self, RangeRequest(key, start, end, if_match, digest, object_size), None)
        meta = await transfer.run()
        return GetResult(transfer.data.toreadonly(), meta)

    async def fetch_into(
        self,
        key: str,
        start: int,
        end: int,
        write: Write,
        *,
        if_match: str | None = None,
        digest: int | None = None,
        object_size: int | None = None,
    ) -> ObjectMeta:
        """Fetches one range and passes it on piece by piece, without keeping it in memory.

        Args:
            key: Key of the object.
            start: First byte.
            end: One past the last byte.
            write: Callback, awaited with (position in the object, piece). Pieces arrive in order, and each position
                once, even if the body breaks off. Only after wrong bytes (a digest mismatch, a body that is too long)
                all pieces arrive again from the start of the range. So written bytes are valid only after this method
                has returned. Errors of ``write`` propagate unchanged.
            if_match: ETag that the object must have.
            digest: xxh3_64 of the range; see `fetch`.
            object_size: Size that the whole object must have, in bytes.

        Raises:
            StorageError: The same errors as `fetch`.
        """
        return await Transfer(self, RangeRequest(key, start, end, if_match, digest, object_size), write).run()

    async def fetch_object(self, key: str, *, accept: Callable[[ObjectMeta], None] | None = None) -> GetResult:
        """Fetches a whole object of unknown size, such as a manifest.

        Args:
            key: Key of the object.
            accept: Callback that receives the response's headers before memory for the body is allocated; its errors
                propagate unchanged. A store that does not stream has received the body by then.
        """
        transfer = Transfer(self, RangeRequest(key, 0, None), None, accept)
        meta = await transfer.run()
        return GetResult(transfer.data.toreadonly(), meta)

    async def call_with_retries(self, call: Callable[[], Awaitable[T]], key: str) -> T:
        """Makes any other call on the store (head, put, the pages of a list) under the same policy, never hedged.

        Args:
            call: Function that makes one attempt.
            key: Key for error messages.

        Raises:
            StorageError: Error of the last attempt, with ``attempts`` filled in.
        """
        deadline = CallDeadline(self.clock())
        place = attempts = 0

        async def admit() -> None:
            nonlocal place
            try:
                place = await self.enter(0, deadline, self.policy.deadline_s)
            except DeadlineExceeded as error:
                raise error.locate(url=self.store.url, key=key, attempts=attempts) from error.__cause__

        async def attempt() -> T:
            nonlocal attempts
            attempts += 1
            sent_s = self.clock()
            allowed_s = attempt_timeout_s(self.policy, num_bytes=0, elapsed_s=self.elapsed_s(deadline))
            try:
                response = await run_with_timeout(allowed_s, call, "no complete response")
                self.record_activity()
                return response
            finally:
                self.leave(place, 0, received=0, answer_s=self.clock() - sent_s)

        def delay_after(error: StorageError) -> float:
            return self.delay_after(
                error, self.policy, key=key, attempts=attempts, failures=attempts, elapsed_s=self.elapsed_s(deadline)
            )

        return await call_with_retries(attempt, delay_after, sleep=self.sleep, admit=admit)

    # -- for `Transfer` --------------------------------------------------------------------------------------------

    async def enter(self, num_bytes: int, deadline: CallDeadline, deadline_s: float) -> int:
        """Waits for a place in flight, first of this engine and then of the endpoint; starts the call's deadline.

        Args:
            num_bytes: Number of bytes that the request announces.
            deadline: Time charged to the call so far.
            deadline_s: Number of charged seconds at which the wait ends.

        Returns:
            Generation of the endpoint's limit, for `leave`.

        Raises:
            DeadlineExceeded: No place became free in time.

        Cancellation: At any time; no place stays taken.
        """
        place = self._try_enter(num_bytes)
        if place is None:
            try:
                place = await wait_with_renewable_deadline(
                    lambda: deadline_s - self.elapsed_s(deadline), lambda: self._wait(num_bytes)
                )
            except TimeoutError as error:
                raise DeadlineExceeded(
                    f"the deadline of {deadline_s:.3g} s passed while a retry waited for a place in flight"
                    if deadline.is_started
                    else f"the store sent nothing for {deadline_s:.3g} s while the request waited for a place in flight"
                ) from error
        deadline.start(last_activity_s=self._endpoint.last_activity_s)
        return place

    def _try_enter(self, num_bytes: int) -> int | None:
        if not self._gate.try_enter(num_bytes):
            return None
        place = self._endpoint.try_enter()
        if place is None:
            self._gate.leave(num_bytes)
        return place

    async def _wait(self, num_bytes: int) -> int:
        await self._gate.enter(num_bytes)
        try:
            return await self._endpoint.enter()
        except BaseException:
            self._gate.leave(num_bytes)
            raise

    def elapsed_s(self, deadline: CallDeadline) -> float:
        """Returns the seconds charged against a call's deadline."""
        return deadline.elapsed_s(self.clock(), last_activity_s=self._endpoint.last_activity_s)

    def record_activity(self) -> None:
        """Records that the store has sent something, which extends the wait of queued calls."""
        self._endpoint.record_activity(self.clock())

    def leave(self, place: int, num_bytes: int, *, received: int, answer_s: float) -> None:
        """Releases the place in the endpoint and in this engine."""
        self.counters.wait_s += answer_s
        self._endpoint.leave(place, now_s=self.clock(), num_bytes=received, answer_s=answer_s)
        self._gate.leave(num_bytes)

    def delay_after(
        self,
        error: StorageError,
        policy: RetryPolicy,
        *,
        key: str | None,
        attempts: int,
        failures: int,
        elapsed_s: float,
    ) -> float:
        """Counts a failed attempt, and returns the seconds to pause before the next.

        Args:
            error: Error of the attempt.
            policy: Limits of the call.
            key: Key of the object, for the error.
            attempts: Number of attempts so far.
            failures: Number of consecutive attempts without progress.
            elapsed_s: Seconds charged against the call's deadline.

        Raises:
            StorageError: ``error``, located and without secrets, because the policy gives up.
        """
        if isinstance(error, Throttled):
            self.counters.num_throttled += 1
        delay_s = self._delay_s(error, policy, failures=failures, elapsed_s=elapsed_s)
        if delay_s is None:
            redact_error(error)  # the cause of a deadline is the client's own exception
            raise error.locate(url=self.store.url, key=key, attempts=attempts) from error.__cause__
        self.counters.num_retries += 1
        return delay_s

    def _delay_s(self, error: StorageError, policy: RetryPolicy, *, failures: int, elapsed_s: float) -> float | None:
        if isinstance(error, Throttled | DeadlineExceeded):
            self._endpoint.throttled(self.clock())
        elif not error.retryable:
            self.record_activity()  # a refusal is a response, too
        # Resuming a body that delivered bytes does not burden a failing store, so it costs no token.
        within_budget = failures == 0 or not error.retryable or self._endpoint.withdraw()
        return retry_delay_s(
            policy,
            error,
            attempts=max(1, failures),
            elapsed_s=elapsed_s,
            jitter=self._rng(),
            within_budget=within_budget,
            is_first_contact=not self._is_known and self._endpoint.last_activity_s == -math.inf,
        )


def check_in_flight(in_flight: object) -> int | None:
    """Returns the number of requests, or None for ``"auto"``.

    Raises:
        ConfigurationError: The argument is neither a positive integer nor ``"auto"``.
    """
    if in_flight == "auto":
        return None
    if not isinstance(in_flight, int) or isinstance(in_flight, bool) or in_flight < 1:
        raise ConfigurationError("in_flight must be a positive integer or 'auto'", got=in_flight)
    return in_flight


def _most_by_descriptors() -> int:
    """Returns the number of sockets for requests: half of the descriptor limit, after 32 for everything else."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_AUTO if most == resource.RLIM_INFINITY else max(1, (most - 32) // 2)
