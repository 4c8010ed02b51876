"""How long the consumer waits for one batch, and what it says meanwhile: one warning, and at last an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from concurrent_loader.errors import LoaderTimeout
from concurrent_loader.waiting import Whereabouts
from storage.errors import ConfigurationError
from storage.sizes import format_count

if TYPE_CHECKING:
    from concurrent_loader.epoch_batches import EpochBatches
    from storage.cache import CacheStats
    from storage.fetch import FetchStats

__all__ = ["Patience", "describe"]

_log = logging.getLogger(__name__)

_QUIET_S = 60.0  # between two warnings of a loader


class Patience:
    """Takes batches, each within a deadline.

    Args:
        warn_s: After so many seconds of waiting for one batch a warning says on what; at most one a wait and a minute.
            None: never.
        timeout_s: After so many seconds `LoaderTimeout` is raised. None: never.
        clock: Monotonic seconds.
        facts: Numbers for the message, of the store and the cache; asked only when there is something to say.

    Thread-safety: The consumer's thread only.
    """

    def __init__(
        self,
        *,
        warn_s: float | None,
        timeout_s: float | None,
        clock: Callable[[], float],
        facts: Callable[[], str],
    ) -> None:
        self.warn_s = _seconds("slow_batch_warning_s", warn_s)
        self.timeout_s = _seconds("timeout", timeout_s)
        self._clock = clock
        self._facts = facts
        self._quiet_until_s = -float("inf")

    def take(self, batches: EpochBatches, *, name: str) -> Any:
        """Waits for the next batch.

        Args:
            batches: Where it comes from.
            name: Of the batch, for the message.

        Raises:
            LoaderTimeout: It did not come in time.
        """
        began = self._clock()
        warned = False
        while True:
            waited_s = self._clock() - began
            if self.timeout_s is not None and waited_s >= self.timeout_s:
                at = batches.whereabouts()
                raise LoaderTimeout(
                    f"{name} did not arrive within {self.timeout_s:g} s; {_sentence(at)}; {self._facts()}",
                    stage=at.cause,
                )
            if self.warn_s is not None and not warned and waited_s >= self.warn_s:
                warned = True
                self._warn(name, waited_s, batches.whereabouts())
            ends = [end for end in (self.timeout_s, None if warned else self.warn_s) if end is not None]
            try:
                return batches.take(min(ends) - waited_s if ends else None)
            except TimeoutError:
                continue

    def _warn(self, name: str, waited_s: float, at: Whereabouts) -> None:
        now_s = self._clock()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _QUIET_S
            _log.warning(
                "%s has not come for %.1f s; waiting for %s: %s; %s",
                name, waited_s, at.cause, _sentence(at), self._facts(),
            )  # fmt: skip


def describe(fetch: FetchStats, cache: CacheStats) -> str:
    """The numbers that tell a slow store from a slow machine."""
    return (
        f"{fetch.in_flight} of {fetch.limit} requests in flight, {fetch.goodput_bytes_per_s / 1e6:.1f} MB/s, "
        f"first byte after {fetch.first_byte_p50_s:.3f} s (95 %: {fetch.first_byte_p95_s:.3f} s), "
        f"{format_count(fetch.num_gets, 'GET')}, {format_count(fetch.num_retries, 'retry', 'retries')}, "
        f"{fetch.num_throttled:,} throttled; cache: {format_count(cache.num_hits, 'hit')}, "
        f"{format_count(cache.num_misses, 'miss', 'misses')}, {cache.num_bypassed:,} bypassed"
    )


def _sentence(at: Whereabouts) -> str:
    return f"it {at.what}, for {at.for_s:.1f} s, {format_count(at.num_batches, 'batch', 'batches')} being made"


def _seconds(name: str, value: float | None) -> float | None:
    """Checks a deadline; 0 is none, as for torch's ``timeout``."""
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(f"{name} must be a number of seconds", got=value)
    return float(value)
