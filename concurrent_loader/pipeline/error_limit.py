"""Counts images that fail to decode, and ends the iteration when there are too many."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, get_args

from concurrent_loader.batch.decode_failures import OnError, RepairedBatch
from concurrent_loader.errors import DecodeError, TooManyDecodeErrors
from concurrent_loader.pipeline.batch_iterator import STOP_S, EpochBatches, Failure
from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.stats.wait_attribution import BatchStatus, Spans
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.sizes import format_count

__all__ = ["ErrorLimit", "ErrorPolicy"]

_log = logging.getLogger(__name__)

_MAX_LOGGED = 5  # errors of one iteration that are logged, and named by the exception


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """A loader's policy for images that fail to decode.

    Args:
        on_error: ``"raise"`` (the default), ``"skip"`` or ``"replace"``; see
            `concurrent_loader.batch.decode_failures`.
        max_errors: Maximum number of failed samples in an epoch; or, as a float from 0 to 1, their maximum share of
            this rank's samples, rounded up. Default: 0.01.

    Raises:
        ConfigurationError: ``on_error`` or ``max_errors`` has an invalid value.
    """

    on_error: OnError = "raise"
    max_errors: int | float = 0.01

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise ConfigurationError("on_error must be 'raise', 'skip' or 'replace'", got=self.on_error)
        bound = self.max_errors
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not bound >= 0:
            raise ConfigurationError("max_errors must be a number of samples or a share of them", got=bound)
        if isinstance(bound, float) and bound > 1:
            raise ConfigurationError("max_errors as a float is a share, from 0 to 1", got=bound)

    def bound(self, num_samples: int) -> int:
        """Returns the maximum number of failed samples among ``num_samples``."""
        return self.max_errors if isinstance(self.max_errors, int) else math.ceil(self.max_errors * num_samples)


class ErrorLimit:
    """Counts a loader's failed samples.

    Args:
        policy: Policy of the loader.

    Attributes:
        num_failed: Number of failed samples so far, over all iterations.
        last_failed: Numbers of the failed samples in the batch taken last; None for a batch as planned.

    Thread-safety: For the consumer's thread only.
    """

    def __init__(self, policy: ErrorPolicy) -> None:
        self.policy = policy
        self.num_failed = 0
        self.last_failed: tuple[int, ...] | None = None

    def watch(self, batches: EpochBatches, num_samples: int) -> EpochBatches:
        """Returns the batches of an iteration, with their failed samples counted.

        Args:
            batches: Batches to count.
            num_samples: Number of this rank's samples in the whole epoch.
        """
        return batches if self.policy.on_error == "raise" else _Counted(batches, self, self.policy.bound(num_samples))


class _Counted:
    """An iteration's batches. The batch that exceeds the limit is replaced by a `Failure`."""

    def __init__(self, batches: EpochBatches, error_limit: ErrorLimit, bound: int) -> None:
        self._batches = batches
        self._error_limit = error_limit
        self._bound = bound
        self._num_failed = 0
        self._first: list[DecodeError] = []

    def start(self) -> None:
        self._batches.start()

    def take(self, timeout_s: float | None = None) -> Any:
        item = self._batches.take(timeout_s)
        self._error_limit.last_failed = None
        if not isinstance(item, RepairedBatch):
            return item
        self._error_limit.last_failed = tuple(each.sample for each in item.errors if each.sample is not None)
        self._count(item.errors)
        return item.batch if self._num_failed <= self._bound else Failure(self._too_many())

    @property
    def spans(self) -> Spans:
        return self._batches.spans

    def batch_status(self) -> BatchStatus:
        return self._batches.batch_status()

    def pipeline_status(self) -> PipelineStatus:
        return self._batches.pipeline_status()

    def stop(self, grace_period_s: float = STOP_S) -> None:
        self._batches.stop(grace_period_s)

    def _count(self, errors: tuple[DecodeError, ...]) -> None:
        action = "skipped" if self._error_limit.policy.on_error == "skip" else "replaced by another one"
        logged = errors[: max(0, _MAX_LOGGED - self._num_failed)]
        for error in logged:
            _log.warning("an image cannot be decoded, so its sample is %s: %s", action, error)
        if self._num_failed <= _MAX_LOGGED < self._num_failed + len(errors):
            _log.warning("more images of this epoch cannot be decoded; they are counted, but no longer logged")
        self._first.extend(logged)
        self._num_failed += len(errors)
        self._error_limit.num_failed += len(errors)

    def _too_many(self) -> TooManyDecodeErrors:
        error = TooManyDecodeErrors(
            f"{format_count(self._num_failed, 'sample')} of this epoch had an image that cannot be decoded; the first: "
            + "; ".join(str(each) for each in self._first),
            expected=f"at most {self._bound} (max_errors)",
            got=self._num_failed,
        )
        error.__cause__ = self._first[0]
        return error
