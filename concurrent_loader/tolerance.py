"""How many broken pictures a loader puts up with: between those who make batches and the consumer, who gets told."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, get_args

from concurrent_loader.broken import Mended, OnError
from concurrent_loader.epoch_batches import EpochBatches
from concurrent_loader.errors import DecodeError, TooManyDecodeErrors
from concurrent_loader.pipeline import STOP_S, Failure
from concurrent_loader.waiting import Trail, Whereabouts
from storage.errors import ConfigurationError
from storage.sizes import format_count

__all__ = ["ErrorPolicy", "Tolerance"]

_log = logging.getLogger(__name__)

_NUM_TOLD = 5  # errors that are logged, and that an exception names, of one iteration


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What a loader does about pictures that cannot be decoded.

    Args:
        on_error: See `concurrent_loader.broken`.
        max_errors: How many of an epoch's samples may be broken: a number, or a share of this rank's samples as a
            float from 0 to 1, rounded up.

    Raises:
        ConfigurationError: An argument that cannot work.
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
        """How many of so many samples may be broken."""
        return self.max_errors if isinstance(self.max_errors, int) else math.ceil(self.max_errors * num_samples)


class Tolerance:
    """Counts a loader's broken pictures.

    Args:
        policy: Of the loader.

    Attributes:
        num_broken: So far, over all iterations.

    Thread-safety: The consumer's thread only.
    """

    def __init__(self, policy: ErrorPolicy) -> None:
        self.policy = policy
        self.num_broken = 0

    def watch(self, batches: EpochBatches, num_samples: int) -> EpochBatches:
        """Returns the batches of an iteration with an eye on them.

        Args:
            batches: As they are made.
            num_samples: Of this rank in the whole epoch.
        """
        return batches if self.policy.on_error == "raise" else _Watched(batches, self, self.policy.bound(num_samples))


class _Watched:
    """An iteration's batches; too many broken pictures are a `Failure` in the place of the batch that has them."""

    def __init__(self, batches: EpochBatches, tolerance: Tolerance, bound: int) -> None:
        self._batches = batches
        self._tolerance = tolerance
        self._bound = bound
        self._num_broken = 0
        self._first: list[DecodeError] = []

    def start(self) -> None:
        self._batches.start()

    def take(self, timeout_s: float | None = None) -> Any:
        item = self._batches.take(timeout_s)
        if not isinstance(item, Mended):
            return item
        self._count(item.errors)
        return item.batch if self._num_broken <= self._bound else Failure(self._too_many())

    @property
    def trail(self) -> Trail:
        return self._batches.trail

    def whereabouts(self) -> Whereabouts:
        return self._batches.whereabouts()

    def stop(self, patience_s: float = STOP_S) -> None:
        self._batches.stop(patience_s)

    def _count(self, errors: tuple[DecodeError, ...]) -> None:
        what = "left out" if self._tolerance.policy.on_error == "skip" else "replaced by another"
        told = errors[: max(0, _NUM_TOLD - self._num_broken)]
        for error in told:
            _log.warning("a picture is broken, and its sample is %s: %s", what, error)
        if self._num_broken <= _NUM_TOLD < self._num_broken + len(errors):
            _log.warning("more pictures of this epoch are broken; from here on they are counted and not logged")
        self._first.extend(told)
        self._num_broken += len(errors)
        self._tolerance.num_broken += len(errors)

    def _too_many(self) -> TooManyDecodeErrors:
        error = TooManyDecodeErrors(
            f"{format_count(self._num_broken, 'sample')} of this epoch had a broken image; the first: "
            + "; ".join(str(each) for each in self._first),
            expected=f"at most {self._bound} (max_errors)",
            got=self._num_broken,
        )
        error.__cause__ = self._first[0]
        return error
