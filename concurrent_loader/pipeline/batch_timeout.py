"""Limits the wait for one batch: logs a warning first, and raises an error in the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from concurrent_loader.errors import LoaderTimeout
from concurrent_loader.pipeline.batch_iterator import EpochBatches
from concurrent_loader.stats.wait_attribution import BatchStatus
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch import FetchStats
from concurrent_loader.storage.sizes import format_count

__all__ = ["BatchTimeout", "describe"]

_log = logging.getLogger(__name__)

_QUIET_S = 60.0  # minimum time between two warnings of a loader


class BatchTimeout:
    """Takes batches, each within a timeout.

    Args:
        warn_s: Seconds of waiting for one batch after which a warning names the cause. There is at most one warning per
            wait and per minute. None disables it.
        timeout_s: Seconds of waiting for one batch after which `LoaderTimeout` is raised. None disables it.
        clock: Function that returns monotonic seconds.
        facts: Function that returns figures of the store and the cache for a message. It is called only for a message.

    Thread-safety: For the consumer's thread only.
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
            batches: Batches of the epoch.
            name: Name of the batch for messages.

        Raises:
            LoaderTimeout: The batch did not come in time.
        """
        began = self._clock()
        warned = False
        while True:
            waited_s = self._clock() - began
            if self.timeout_s is not None and waited_s >= self.timeout_s:
                at = batches.batch_status()
                raise LoaderTimeout(
                    f"{name} did not arrive within {self.timeout_s:g} s; {_sentence(at)}; {self._facts()}",
                    stage=at.cause,
                )
            if self.warn_s is not None and not warned and waited_s >= self.warn_s:
                warned = True
                self._warn(name, waited_s, batches.batch_status())
            ends = [end for end in (self.timeout_s, None if warned else self.warn_s) if end is not None]
            try:
                return batches.take(min(ends) - waited_s if ends else None)
            except TimeoutError:
                continue

    def _warn(self, name: str, waited_s: float, at: BatchStatus) -> None:
        now_s = self._clock()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _QUIET_S
            _log.warning(
                "%s has not come for %.1f s; waiting for %s: %s; %s",
                name, waited_s, at.cause, _sentence(at), self._facts(),
            )  # fmt: skip


def describe(fetch: FetchStats, cache: CacheStats) -> str:
    """Returns the figures that distinguish a slow store from a slow machine."""
    return (
        f"{fetch.in_flight} of {fetch.limit} requests in flight, {fetch.goodput_bytes_per_s / 1e6:.1f} MB/s, "
        f"first byte after {fetch.first_byte_p50_s:.3f} s (95 %: {fetch.first_byte_p95_s:.3f} s), "
        f"{format_count(fetch.num_gets, 'GET')}, {format_count(fetch.num_retries, 'retry', 'retries')}, "
        f"{fetch.num_throttled:,} throttled; cache: {format_count(cache.num_hits, 'hit')}, "
        f"{format_count(cache.num_misses, 'miss', 'misses')}, {cache.num_bypassed:,} bypassed"
    )


def _sentence(at: BatchStatus) -> str:
    return f"it {at.what}, for {at.for_s:.1f} s, {format_count(at.num_batches, 'batch', 'batches')} being made"


def _seconds(name: str, value: float | None) -> float | None:
    """Checks a time limit. 0 means no limit, as in torch's ``timeout``."""
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(f"{name} must be a positive number of seconds, or None for no limit", got=value)
    return float(value)
