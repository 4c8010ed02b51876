"""How many requests an endpoint bears at once: the decisions of an additive-increase controller, pure, clock handed in.

The measure is goodput by Little's law: requests in flight, times bytes an answer, divided by seconds an answer. Unlike
bytes counted by the second it does not care whether answers come in waves, as they do when many requests were sent
together. Only requests that were sent under the present limit count, only from the second round of them on, and only
while the limit was what held back the rest.

Source: slow start and multiplicative decrease from TCP (RFC 5681); the judged step, up and now and then down, from
hill climbing. A fixed threshold for latency (as in Vegas, or Netflix's gradient) was not taken: what a store's latency
is without load is not known, and its spread is wide.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["MAX_AUTO", "LimitController", "Phase"]

MAX_AUTO = 256  # for readers that leave the number to us
_START = 16
_RISE = 1.1  # doubling must bring at least this
_CUT = 0.7
_BOUND_SHARE = 0.9  # of an interval's answers must have found the limit reached
_MIN_ANSWERS = 4
_SLOW_START_INTERVAL_S = 0.1
_INTERVAL_S = 0.25
_HOLD_S = 1.0
_DOWN_EVERY = 4
_STRIDE, _LONGEST_STRIDE = 1 / 8, 1 / 2  # of the limit; doubled while steps succeed


class Phase(Enum):
    """What the controller is doing: doubling, judging single steps, or coming back after the store asked for less."""

    SLOW_START = "slow start"
    STEADY = "steady"
    RECOVERY = "recovery"


class LimitController:
    """Finds the smallest number of requests in flight that brings nearly all the goodput there is.

    Not thread-safe: `storage.fetch.endpoint` locks.

    Attributes:
        generation: Grows with every change of the limit; a request remembers under which it was sent.
        phase: What is going on.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.phase = Phase.SLOW_START
        self._limit = float(_START)
        self._wanted = 0
        self._ceiling = MAX_AUTO
        self._reference: float | None = None  # goodput to compare with
        self._came_from: float | None = None  # the limit before the step that is being judged
        self._first_look: float | None = None  # goodput that seemed to say that doubling has done its work
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
        """Requests that may be in flight; at least 1."""
        return int(self._limit)

    def configure(self, *, fixed: int, num_auto: int) -> None:
        """The readers are others now.

        Args:
            fixed: Sum of what the readers with a number of their own want; the limit comes back to it unasked.
            num_auto: Readers that leave the number to us: with any, the limit may rise to 256.
        """
        self._wanted = fixed
        self._ceiling = max(fixed, MAX_AUTO if num_auto else 1)
        low = 1 if self.phase is Phase.RECOVERY else fixed
        limit = min(max(self._limit, low), self._ceiling)
        if limit != self._limit:
            self._move(limit)

    def throttled(self, now_s: float) -> None:
        """The store asked for fewer requests, or did not answer in time: ×0.7, once a round-trip at most."""
        if self._last_cut_s is not None and now_s - self._last_cut_s < max(self._answer_s, 0.05):
            return
        self._last_cut_s = now_s
        if self.phase is not Phase.RECOVERY:
            self._recover_to = _CUT * self._limit
        elif self._grown:
            # Again on the way up: what it bears is less than before. A storm that lasts does not come here, so that
            # its end finds the way back short.
            self._recover_to = max(_CUT * self._limit, _CUT * self._recover_to)
        self.phase = Phase.RECOVERY
        self._grown = False
        self._reference = self._came_from = None
        self._stride = _STRIDE
        self._move(max(1.0, _CUT * self._limit))

    def finished(self, now_s: float, *, generation: int, num_bytes: int, answer_s: float, bound: bool) -> None:
        """A request has left.

        Args:
            now_s: Now.
            generation: Under which it was sent.
            num_bytes: That it brought; 0 if it failed.
            answer_s: How long it was in flight.
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
            # On a busy machine one interval in a few is far too low, and doubling would end for good.
            self._first_look = goodput
            return
        elif self._came_from is not None:
            goodput = max(goodput, self._first_look)
            # Enough lies between the two; a quarter more than the lower is within a tenth of it.
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
