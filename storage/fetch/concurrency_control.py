"""Finds the number of requests in flight that an endpoint handles best. No I/O; the clock is an argument.

The controller measures goodput by Little's law: requests in flight, times bytes per response, divided by seconds per
response. Unlike a count of bytes per second, this measure does not change when responses arrive in waves, as they do
when many requests were sent together. Only requests sent under the current limit count, only from their second round
on, and only while the limit was what held further requests back.

Source: slow start and multiplicative decrease come from TCP (RFC 5681); single steps that are kept or taken back come
from hill climbing. A latency threshold (as in Vegas, or Netflix's gradient) was rejected, because a store's latency
without load is unknown and varies widely.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["MAX_AUTO", "LimitController", "Phase"]

MAX_AUTO = 256  # for readers with in_flight="auto"
_START = 16
_RISE = 1.1  # doubling must raise goodput at least this much
_CUT = 0.7
_BOUND_SHARE = 0.9  # of an interval's responses must have found the limit reached
_MIN_ANSWERS = 4
_SLOW_START_INTERVAL_S = 0.1
_INTERVAL_S = 0.25
_HOLD_S = 1.0
_DOWN_EVERY = 4
_STRIDE, _LONGEST_STRIDE = 1 / 8, 1 / 2  # as a fraction of the limit; doubles while steps succeed


class Phase(Enum):
    """State of the controller: doubling, trying single steps, or recovering after the store throttled."""

    SLOW_START = "slow start"
    STEADY = "steady"
    RECOVERY = "recovery"


class LimitController:
    """Finds the smallest number of requests in flight that reaches nearly the highest goodput.

    Not thread-safe: `concurrent_loader.storage.fetch.endpoint` locks.

    Attributes:
        generation: Number that grows with every change of the limit; a request remembers the one it was sent under.
        phase: State of the controller.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.phase = Phase.SLOW_START
        self._limit = float(_START)
        self._wanted = 0
        self._ceiling = MAX_AUTO
        self._reference: float | None = None  # goodput to compare with
        self._came_from: float | None = None  # the limit before the step under test
        self._first_look: float | None = None  # goodput that suggests that doubling no longer helps
        self._num_probes = 0
        self._stride = _STRIDE
        self._next_probe_s = 0.0
        self._recover_to = 0.0
        self._grown = False
        self._last_cut_s: float | None = None
        self._answer_s = 0.0
        self._begin_interval(settled=False)

    @property
    def limit(self) -> int:
        """Number of requests that may be in flight; at least 1."""
        return int(self._limit)

    def configure(self, *, fixed: int, num_auto: int) -> None:
        """Adapts to a change of the readers.

        Args:
            fixed: Sum of the numbers that readers ask for; the limit always returns to it.
            num_auto: Number of readers with ``in_flight="auto"``; with any, the limit may rise to 256.
        """
        self._wanted = fixed
        self._ceiling = max(fixed, MAX_AUTO if num_auto else 1)
        low = 1 if self.phase is Phase.RECOVERY else fixed
        limit = min(max(self._limit, low), self._ceiling)
        if limit != self._limit:
            self._move(limit)

    def throttled(self, now_s: float) -> None:
        """Multiplies the limit by 0.7, at most once per round trip, because the store throttled or timed out."""
        if self._last_cut_s is not None and now_s - self._last_cut_s < max(self._answer_s, 0.05):
            return
        self._last_cut_s = now_s
        if self.phase is not Phase.RECOVERY:
            self._recover_to = _CUT * self._limit
        elif self._grown:
            # Throttled again on the way up: the store handles less than before. A lasting overload does not reach this
            # branch, so that recovery after it is fast.
            self._recover_to = max(_CUT * self._limit, _CUT * self._recover_to)
        self.phase = Phase.RECOVERY
        self._grown = False
        self._reference = self._came_from = None
        self._stride = _STRIDE
        self._move(max(1.0, _CUT * self._limit))

    def finished(self, now_s: float, *, generation: int, num_bytes: int, answer_s: float, bound: bool) -> None:
        """Reports the end of a request.

        Args:
            now_s: Current time.
            generation: Generation under which the request was sent.
            num_bytes: Number of bytes received; 0 if the request failed.
            answer_s: Seconds that the request was in flight.
            bound: Whether the limit was reached at this moment.
        """
        self._answer_s += (answer_s - self._answer_s) * (0.1 if self._answer_s else 1.0)
        if generation != self.generation:
            return
        if self._num_settling > 0:
            self._num_settling -= 1
            self._began_s = now_s
            return
        self._num_answers += 1
        self._num_bound += bound
        self._num_bytes += num_bytes
        self._sum_s += answer_s
        shortest_s = _SLOW_START_INTERVAL_S if self.phase is Phase.SLOW_START else _INTERVAL_S
        if self._num_answers < max(_MIN_ANSWERS, self.limit) or now_s - self._began_s < shortest_s:
            return
        is_bound = self._num_bound >= _BOUND_SHARE * self._num_answers
        goodput = self.limit * self._num_bytes / max(self._sum_s, 1e-9)
        self._began_s = now_s
        self._begin_interval(settled=True)
        if is_bound:
            self._decide(now_s, goodput)

    # -- decisions -------------------------------------------------------------------------------------------------

    def _decide(self, now_s: float, goodput: float) -> None:
        match self.phase:
            case Phase.SLOW_START:
                self._double(now_s, goodput)
            case Phase.RECOVERY:
                self._recover(now_s)
            case Phase.STEADY if self.limit < self._wanted:
                self._move(self._limit + max(1.0, self._limit / 16))
            case Phase.STEADY if self._came_from is None:
                self._reference = goodput
                if now_s >= self._next_probe_s:
                    self._num_probes += 1
                    self._step(now_s, up=self._num_probes % _DOWN_EVERY != 0)
            case Phase.STEADY:
                self._judge(now_s, goodput)

    def _double(self, now_s: float, goodput: float) -> None:
        if self._reference is None or goodput >= _RISE * self._reference:
            self._reference, self._came_from = goodput, self._limit
            if self._limit < self._ceiling:
                self._move(2 * self._limit)
                return
        elif self._first_look is None:
            # On a busy machine some intervals measure far too low; a second look avoids ending slow start early.
            self._first_look = goodput
            return
        elif self._came_from is not None:
            goodput = max(goodput, self._first_look)
            # The best limit lies between the two; a quarter above the lower one comes within a tenth.
            self._move(1.25 * self._came_from if goodput >= 0.95 * self._reference else self._came_from)
        self._settle(now_s)

    def _recover(self, now_s: float) -> None:
        if self._limit < self._recover_to:
            self._grown = True
            self._move(min(self._limit + max(1.0, self._limit / 4), max(self._recover_to, 1.0)))
        else:
            self._settle(now_s)

    def _settle(self, now_s: float) -> None:
        self.phase = Phase.STEADY
        self._came_from = None
        self._next_probe_s = now_s + _HOLD_S

    def _step(self, now_s: float, *, up: bool) -> None:
        before, step = self._limit, max(1.0, self._limit * (self._stride if up else _STRIDE))
        self._move(before + step if up else max(before - step, float(self._wanted)))
        if self._limit == before:
            self._next_probe_s = now_s + _HOLD_S
        else:
            self._came_from = before

    def _judge(self, now_s: float, goodput: float) -> None:
        assert self._reference is not None
        assert self._came_from is not None
        before, self._came_from = self._came_from, None
        gain = goodput / self._reference if self._reference else 2.0
        if self._limit > before and gain >= 1.0 + (self._limit - before) / before / 2:
            self._reference = goodput
            self._stride = min(_LONGEST_STRIDE, 2 * self._stride)
            self._step(now_s, up=True)
            return
        self._stride = _STRIDE
        if self._limit > before or gain < 1.0:
            self._move(before)
        self._next_probe_s = now_s + _HOLD_S

    def _move(self, limit: float) -> None:
        self._limit = min(max(limit, 1.0), float(self._ceiling))
        self.generation += 1
        self._begin_interval(settled=False)

    def _begin_interval(self, *, settled: bool) -> None:
        self._num_settling = 0 if settled else self.limit
        if not settled:
            self._began_s = 0.0
            self._first_look = None
        self._num_answers = self._num_bound = self._num_bytes = 0
        self._sum_s = 0.0
