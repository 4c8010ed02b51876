"""Whose turn it is at each step of a mixture's epoch: computed a block of steps at a time, below `mixture_plan`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from concurrent_loader.order.shuffle import hash_items

__all__ = ["PhasedTurns", "TurnOrder"]

_BLOCK_STEPS = 1 << 14  # sorted at once, in about a millisecond
_BLOCKS_KEPT = 8


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """The turns of one part of the epoch.

    Attributes:
        first_step: Step of the first turn in the block.
        first_turns: Number of turns of each dataset before the block.
        whose: (n,): the dataset of each turn, in the order of steps.
        steps: The steps of each dataset's turns, ascending, counted from ``first_step``.
    """

    first_step: int
    first_turns: tuple[int, ...]
    whose: npt.NDArray[np.int64]
    steps: tuple[npt.NDArray[np.int64], ...]

    def has_step(self, step: int) -> bool:
        return self.first_step <= step < self.first_step + len(self.whose)

    def has_turn(self, child: int, turn: int) -> bool:
        return self.first_turns[child] <= turn < self.first_turns[child] + len(self.steps[child])


class TurnOrder:
    """The order of the turns in an epoch: turn j of a dataset with m turns has the place ``(j + u) / m`` in 0 … 1.

    Turns are sorted by place; equal places by dataset, then by j. ``u`` is in 0 … 1, so the epoch can be cut at any
    place: which turns lie before the cut is known without the others. Memory and time of a look-up depend on the size
    of a block, not on the length of the epoch.

    Args:
        turns: Number of turns of each dataset.
        keys: Key of the hash that gives each dataset's u; None: u is ½.
        block_steps: Number of steps computed at once, about.

    Thread-safety: All methods may be called from any thread.
    """

    def __init__(
        self, turns: Sequence[int], keys: Sequence[int] | None = None, *, block_steps: int = _BLOCK_STEPS
    ) -> None:
        self._turns = tuple(turns)
        self._keys = keys
        self._num_steps = sum(turns)
        self._num_blocks = -(-self._num_steps // block_steps)
        self._blocks: dict[int, _Block] = {}

    def whose(self, step: int) -> int:
        """Returns the dataset whose turn it is at a step."""
        block = self._block_of_step(step)
        return int(block.whose[step - block.first_step])

    def turns_before(self, child: int, step: int) -> int:
        """Returns the number of turns of a dataset before a step, which may be the end of the epoch."""
        if step >= self._num_steps:
            return self._turns[child]
        block = self._block_of_step(step)
        return block.first_turns[child] + int(np.searchsorted(block.steps[child], step - block.first_step))

    def step_of(self, child: int, turn: int) -> int:
        """Returns the step of a dataset's turn."""
        for block in reversed(list(self._blocks.values())):
            if block.has_turn(child, turn):
                break
        else:
            number = min(int(self._places(child, turn, turn + 1)[0] * self._num_blocks), self._num_blocks - 1)
            while self._starts(number)[child] > turn:
                number -= 1
            while self._starts(number + 1)[child] <= turn:
                number += 1
            block = self._block(number)
        return block.first_step + int(block.steps[child][turn - block.first_turns[child]])

    def _block_of_step(self, step: int) -> _Block:
        for block in reversed(list(self._blocks.values())):
            if block.has_step(step):
                return block
        number = step * self._num_blocks // self._num_steps
        while sum(self._starts(number)) > step:
            number -= 1
        while sum(self._starts(number + 1)) <= step:
            number += 1
        return self._block(number)

    def _block(self, number: int) -> _Block:
        first, end = self._starts(number), self._starts(number + 1)
        places = [self._places(child, *span) for child, span in enumerate(zip(first, end, strict=True))]
        order = np.argsort(np.concatenate(places), kind="stable")
        sizes = [len(each) for each in places]
        whose = np.repeat(np.arange(len(sizes)), sizes)[order]
        steps = tuple(np.flatnonzero(whose == child) for child in range(len(sizes)))
        block = self._blocks[number] = _Block(sum(first), first, whose, steps)
        for old in list(self._blocks)[:-_BLOCKS_KEPT]:
            self._blocks.pop(old, None)
        return block

    def _starts(self, number: int) -> tuple[int, ...]:
        """Returns the number of turns of each dataset before a block."""
        if number >= self._num_blocks:
            return self._turns
        cut = number / self._num_blocks
        return tuple(self._num_before(child, cut) for child in range(len(self._turns)))

    def _num_before(self, child: int, cut: float) -> int:
        guess = int(cut * self._turns[child])  # off by one at most, by u and by rounding
        start, stop = max(0, guess - 2), min(self._turns[child], guess + 3)
        return start + int(np.searchsorted(self._places(child, start, stop), cut))

    def _places(self, child: int, start: int, stop: int) -> npt.NDArray[np.float64]:
        """Returns the places of some turns, ascending: one in each of as many equal parts of the epoch."""
        offset: npt.NDArray[np.float64] | float = 0.5
        if self._keys is not None:
            offset = (hash_items(self._keys[child], start, stop) >> np.uint64(11)).astype(np.float64) / 2**53
        places: npt.NDArray[np.float64] = (np.arange(start, stop) + offset) / self._turns[child]
        return places


class PhasedTurns:
    """The turns of an epoch whose weights change at given steps: the orders of its phases, one after the other.

    Args:
        turns: Number of turns of each dataset, for each phase.
        orders: Order of each phase.

    Thread-safety: All methods may be called from any thread.
    """

    def __init__(self, turns: Sequence[Sequence[int]], orders: Sequence[TurnOrder]) -> None:
        self._orders = tuple(orders)
        self._first_steps = [0, *accumulate(map(sum, turns))]
        self._before = [[0, *accumulate(phase[child] for phase in turns)] for child in range(len(turns[0]))]

    def whose(self, step: int) -> int:
        """Returns the dataset whose turn it is at a step."""
        phase, within = self._find(step)
        return self._orders[phase].whose(within)

    def turns_before(self, child: int, step: int) -> int:
        """Returns the number of turns of a dataset before a step, which may be the end of the epoch."""
        phase, within = self._find(step)
        return self._before[child][phase] + self._orders[phase].turns_before(child, within)

    def step_of(self, child: int, turn: int) -> int:
        """Returns the step of a dataset's turn."""
        before = self._before[child]
        phase = bisect_right(before, turn) - 1
        return self._first_steps[phase] + self._orders[phase].step_of(child, turn - before[phase])

    def _find(self, step: int) -> tuple[int, int]:
        phase = min(bisect_right(self._first_steps, step), len(self._orders)) - 1
        return phase, step - self._first_steps[phase]
