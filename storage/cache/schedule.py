"""When each shard is used next, as the plan knows it: what the cache is told so that it can evict; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from storage.errors import ConfigurationError

__all__ = ["UseSchedule"]

Steps = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class UseSchedule:
    """The uses of a data set's shards in this epoch and the next, by any rank of the world.

    Steps are counted from the beginning of this epoch, and on into the next: one rising scale. They need not be whole,
    nor exact: their order decides.

    Args:
        names: The shards' digests.
        first_step: (n,) when this epoch needs each shard first; infinity where it does not.
        last_step: (n,) after which this epoch does not need it any more; -1 where it does not at all.
        next_step: (n,) when the next epoch needs it first; infinity where it does not.
        shared: (n,) whether other ranks, too, use it in this epoch.

    Thread-safety: immutable.
    """

    names: Sequence[str]
    first_step: Steps
    last_step: Steps
    next_step: Steps
    shared: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        for column in (self.first_step, self.last_step, self.next_step, self.shared):
            if column.shape != (len(self.names),):
                raise ConfigurationError(
                    "a schedule has one step a shard", expected=(len(self.names),), got=column.shape
                )

    def next_use(self, name: str, *, step: float, spent: bool = False) -> float | None:
        """Returns when a shard is wanted next, seen from a step; None for shards that are not in the data set.

        Args:
            name: Its digest.
            step: Where the epoch is.
            spent: It is known that this epoch is done with it, whatever ``last_step`` says.
        """
        uses = self._uses.get(name)
        if uses is None:
            return None
        first, last, following, _ = uses
        return following if spent or step > last else max(first, step)

    def later_use(self, name: str, *, step: float) -> float | None:
        """Returns when a shard is wanted again after the use that begins now; None for shards of other data sets.

        That is in the next epoch, unless other ranks need it in this one.
        """
        uses = self._uses.get(name)
        return None if uses is None else step if uses[3] else uses[2]

    @cached_property
    def _uses(self) -> dict[str, tuple[float, float, float, bool]]:
        table: dict[str, tuple[float, float, float, bool]] = {}
        columns = (column.tolist() for column in (self.first_step, self.last_step, self.next_step, self.shared))
        for name, first, last, following, shared in zip(self.names, *columns, strict=True):
            same = table.get(name)
            if same is not None:  # two entries of a manifest may be one file
                first, last, following = min(first, same[0]), max(last, same[1]), min(following, same[2])
            table[name] = (first, last, following, shared or same is not None)
        return table
