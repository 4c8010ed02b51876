"""How bytes are brought: many ranges in flight, each insisted on, checked and counted; between store and cache."""

from __future__ import annotations

import asyncio
import math
import random
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from storage.errors import ConfigurationError, DeadlineExceeded, StorageError, Throttled
from storage.fetch.asking import Asker
from storage.fetch.deadlines import Age, attempt_timeout_s
from storage.fetch.endpoint import Endpoint
from storage.fetch.hedging import HedgePolicy
from storage.fetch.limit_control import MAX_AUTO
from storage.fetch.limits import InFlightGate
from storage.fetch.patience import wait_while
from storage.fetch.retry import RetryPolicy, retry_delay_s
from storage.fetch.stats import Counters, FetchStats
from storage.fetch.transfer import Transfer, Wish, Write
from storage.secrets import presentable
from storage.sizes import Size, parse_size
from storage.stores.protocol import GetResult, ObjectMeta, Store

__all__ = ["FetchEngine", "InFlight", "check_in_flight"]

T = TypeVar("T")

InFlight = int | Literal["auto"]
_HEDGE = HedgePolicy()


class FetchEngine:
    """Brings ranges of objects from one store, with retries, deadlines, digests and bounds.

    Args:
        store: Where the bytes live. The engine does not close it.
        in_flight: Requests at once: at most so many, or ``"auto"`` for what the endpoint bears, up to 256. All engines
            of one endpoint in the process share a limit that adapts; see docs/fetching.md. Where few files may be open
            (``ulimit -n``), fewer.
        bytes_in_flight: Announced bytes at once; a larger single request runs alone.
        retry: When to insist and when to give up.
        hedge: When a late request is sent a second time; None for never.
        is_known: Whether the endpoint has answered before, in another process, say. One that has not is given up within
            seconds if nobody listens there.
        clock: Monotonic seconds.
        sleep: Awaitable pause.
        dice: Uniform numbers in [0, 1).

    Cancellation: At any await; the place in flight is given back and the connection released.

    Thread-safety: For one event loop; `stats` may be read from any thread.
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
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dice: Callable[[], float] = random.random,
    ) -> None:
        bound = check_in_flight(in_flight)
        self.store = store
        self.policy = RetryPolicy.of(retry)
        if hedge is not None and not isinstance(hedge, HedgePolicy):
            raise ConfigurationError("hedge must be a HedgePolicy or None", got=type(hedge).__name__)
        self.counters = Counters()
        self.clock = clock
        self._gate = InFlightGate(
            max_requests=min(bound or MAX_AUTO, _most_by_descriptors()),
            max_bytes=parse_size(bytes_in_flight, name="bytes_in_flight"),
        )
        self._endpoint = Endpoint.of(store.endpoint)
        self._membership = self._endpoint.join(bound)
        self.asker = Asker(self._endpoint, self.counters, hedge, clock)
        self._is_known = is_known
        self._sleep = sleep
        self._dice = dice

    @property
    def limit(self) -> int:
        """Requests that may be in flight at the moment: this engine's bound, and what the endpoint bears."""
        return min(self._gate.max_requests, self._endpoint.limit)

    @property
    def stats(self) -> FetchStats:
        """Counters so far, and what is going on."""
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
        """Brings one range.

        Args:
            key: The object.
            start: First byte.
            end: One past the last byte.
            if_match: The ETag that the object must have.
            digest: xxh3_64 of the range. On a mismatch it is fetched once more, then `DigestMismatch` is raised;
                it says whether both times the same bytes came.
            object_size: What the whole object must measure, or `ObjectChanged` is raised.

        Raises:
            ObjectChanged: The object is another one now, or became one between two attempts.
            StorageError: The last attempt's, with ``attempts`` filled in.
        """
        transfer = Transfer(self, Wish(key, start, end, if_match, digest, object_size), None)
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
        """Brings one range and hands it on piece by piece, without holding it.

        Args:
            key: The object.
            start: First byte.
            end: One past the last byte.
            write: Awaited with (position in the object, piece). Pieces come in order and every position once, however
                often the body breaks off; only after wrong bytes (a digest mismatch, a body that is too long) all come
                again from the start of the range. So what was written is to be trusted only when this method returns.
                What ``write`` raises goes through unchanged.
            if_match: As for `fetch`.
            digest: As for `fetch`.
            object_size: As for `fetch`.

        Raises:
            StorageError: As for `fetch`.
        """
        return await Transfer(self, Wish(key, start, end, if_match, digest, object_size), write).run()

    async def fetch_object(self, key: str, *, accept: Callable[[ObjectMeta], None] | None = None) -> GetResult:
        """Brings a whole object whose size is not known beforehand (a manifest, say).

        Args:
            key: The object.
            accept: Told what the answer's headers say, before memory for the body is taken; what it raises goes through
                unchanged. A store that does not stream has the body by then.
        """
        transfer = Transfer(self, Wish(key, 0, None), None, accept)
        meta = await transfer.run()
        return GetResult(transfer.data.toreadonly(), meta)

    async def insist(self, call: Callable[[], Awaitable[T]], key: str) -> T:
        """Makes any other call on the store (head, put, the pages of a list) under the same policy; never a double."""
        age = Age(self.clock())
        attempts = 0
        while True:
            try:
                place = await self.enter(0, age, self.policy.deadline_s)
            except DeadlineExceeded as error:
                raise error.locate(url=self.store.url, key=key, attempts=attempts) from error.__cause__
            attempts += 1
            sent_s = self.clock()
            allowed_s = attempt_timeout_s(self.policy, num_bytes=0, elapsed_s=self.elapsed_s(age))
            try:
                answer = await _within(allowed_s, call)
                self.heard()
                return answer
            except StorageError as error:
                if isinstance(error, Throttled):
                    self.counters.num_throttled += 1
                delay_s = self.delay_s(error, self.policy, failures=attempts, elapsed_s=self.elapsed_s(age))
                if delay_s is None:
                    presentable(error)
                    raise error.locate(url=self.store.url, key=key, attempts=attempts) from error.__cause__
            finally:
                self.leave(place, 0, received=0, answer_s=self.clock() - sent_s)
            self.counters.num_retries += 1
            await self.pause(delay_s)

    # -- for `Transfer` --------------------------------------------------------------------------------------------

    async def enter(self, num_bytes: int, age: Age, deadline_s: float) -> int:
        """Waits for a place in flight, of this engine and then of the endpoint.

        Args:
            num_bytes: That the request announces.
            age: Of the call; it is told that it was sent.
            deadline_s: At that age waiting ends.

        Raises:
            DeadlineExceeded: There was no place until then.

        Cancellation: At any time; no place stays taken.
        """
        place = self._enter_at_once(num_bytes)
        if place is None:
            try:
                place = await wait_while(lambda: deadline_s - self.elapsed_s(age), lambda: self._wait(num_bytes))
            except TimeoutError as error:
                raise DeadlineExceeded(
                    f"the deadline of {deadline_s:.3g} s passed while it waited for a place in flight again"
                    if age.is_sent
                    else f"nothing came from the store for {deadline_s:.3g} s while it waited for a place in flight"
                ) from error
        age.sent(heard_s=self._endpoint.heard_s)
        return place

    def _enter_at_once(self, num_bytes: int) -> int | None:
        if not self._gate.enter_at_once(num_bytes):
            return None
        place = self._endpoint.enter_at_once()
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

    def elapsed_s(self, age: Age) -> float:
        """How much of its deadline a call has used up."""
        return age.seconds(self.clock(), heard_s=self._endpoint.heard_s)

    def heard(self) -> None:
        """Something has come from the store: nobody who waits for a place waits in vain."""
        self._endpoint.heard(self.clock())

    def leave(self, place: int, num_bytes: int, *, received: int, answer_s: float) -> None:
        """Gives both back."""
        self.counters.wait_s += answer_s
        self._endpoint.leave(place, now_s=self.clock(), num_bytes=received, answer_s=answer_s)
        self._gate.leave(num_bytes)

    def delay_s(self, error: StorageError, policy: RetryPolicy, *, failures: int, elapsed_s: float) -> float | None:
        """Seconds to pause after so many failures in a row, or None to give up; tells the endpoint of throttling."""
        if isinstance(error, Throttled | DeadlineExceeded):
            self._endpoint.throttled(self.clock())
        elif not error.retryable:
            self.heard()  # a refusal is an answer, too
        # Who brought something is no burden on a sick store: going on costs no token.
        within_budget = failures == 0 or not error.retryable or self._endpoint.withdraw()
        return retry_delay_s(
            policy,
            error,
            attempts=max(1, failures),
            elapsed_s=elapsed_s,
            dice=self._dice(),
            within_budget=within_budget,
            is_first_contact=not self._is_known and self._endpoint.heard_s == -math.inf,
        )

    async def pause(self, seconds: float) -> None:
        """Waits."""
        await self._sleep(seconds)


def check_in_flight(in_flight: object) -> int | None:
    """Returns the number, or None for ``"auto"``.

    Raises:
        ConfigurationError: It is neither.
    """
    if in_flight == "auto":
        return None
    if not isinstance(in_flight, int) or isinstance(in_flight, bool) or in_flight < 1:
        raise ConfigurationError("in_flight is a positive number or 'auto'", got=in_flight)
    return in_flight


def _most_by_descriptors() -> int:
    """How many sockets requests may use: half of the files that may be open, after 32 for everything else."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_AUTO if most == resource.RLIM_INFINITY else max(1, (most - 32) // 2)


async def _within(allowed_s: float, call: Callable[[], Awaitable[T]]) -> T:
    try:
        async with asyncio.timeout(allowed_s):
            return await call()
    except TimeoutError as error:
        raise DeadlineExceeded(f"no complete answer within {allowed_s:.3g} s") from error
