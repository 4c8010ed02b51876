"""Chooses which files leave the cache when room is needed: those with the farthest next use. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["Resident", "UseSchedule", "choose_victims"]


@dataclass(frozen=True, slots=True)
class Resident:
    """A file in the cache.

    Attributes:
        name: Name of the file.
        size: Size of the file, in bytes.
        next_use: Step at which the file is needed next, on any rising scale (see `UseSchedule`); None if unknown.
        last_used_s: Time of the last use, in POSIX seconds.
    """

    name: str
    size: int
    next_use: float | None
    last_used_s: float


def choose_victims(
    residents: Sequence[Resident], *, need_bytes: int, newcomer: float | None = None
) -> list[Resident] | None:
    """Chooses files to delete until ``need_bytes`` are free, in the order in which to delete them.

    The order of an epoch is known, so this is Belady's optimal rule ("A study of replacement algorithms for a
    virtual-storage computer", IBM Systems Journal 5(2), 1966). Files without a known next use go first, least recently
    used first. Then files go by their next use, farthest first.

    Args:
        residents: Files that may be evicted.
        need_bytes: Number of missing bytes.
        newcomer: Step at which the file that needs the room is needed again; None if unknown. No file with a sooner
            next use is evicted for it, because such a newcomer is better read without being kept.

    Returns:
        All candidates, in order; None if together they are not enough. The caller stops when there is room, because
        some candidates may turn out to be in use.
    """
    unknown = sorted((r for r in residents if r.next_use is None), key=lambda r: (r.last_used_s, r.name))
    known = sorted(
        (r for r in residents if r.next_use is not None and (newcomer is None or r.next_use > newcomer)),
        key=lambda r: (-(r.next_use or 0), r.last_used_s, r.name),
    )
    order = [*unknown, *known]
    return order if sum(resident.size for resident in order) >= need_bytes else None


Steps = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class UseSchedule:
    """The future uses of a dataset's shards, in this epoch and the next, by any rank.

    Steps are counted from the start of this epoch and continue into the next, on one rising scale. Steps may be
    fractional and approximate, because only their order matters.

    Args:
        names: Digests of the n shards.
        first_step: (n,) float64: first step of this epoch that needs the shard; infinity if none does.
        last_step: (n,) float64: last step of this epoch that needs the shard; -1 if none does.
        next_step: (n,) float64: first step of the next epoch that needs the shard; infinity if none does.
        shared: (n,) bool: whether other ranks also use the shard in this epoch.

    Thread-safety: Immutable.
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
                    "a schedule must have one step per shard", expected=(len(self.names),), got=column.shape
                )

    def next_use(self, name: str, *, step: float, done_for_epoch: bool = False) -> float | None:
        """Returns the step that needs a shard next; None for shards of other datasets.

        Args:
            name: Digest of the shard.
            step: Current step of the epoch.
            done_for_epoch: Whether this epoch is known to need the shard no more, whatever ``last_step`` says.
        """
        uses = self._uses.get(name)
        if uses is None:
            return None
        first, last, following, _ = uses
        return following if done_for_epoch or step > last else max(first, step)

    def later_use(self, name: str, *, step: float) -> float | None:
        """Returns the step that needs a shard again after the current use; None for shards of other datasets.

        The step is in the next epoch, unless other ranks need the shard in this one.
        """
        uses = self._uses.get(name)
        return None if uses is None else step if uses[3] else uses[2]

    @cached_property
    def _uses(self) -> dict[str, tuple[float, float, float, bool]]:
        table: dict[str, tuple[float, float, float, bool]] = {}
        columns = (column.tolist() for column in (self.first_step, self.last_step, self.next_step, self.shared))
        for name, first, last, following, shared in zip(self.names, *columns, strict=True):
            same = table.get(name)
            if same is not None:  # two entries of a manifest may name one file
                first, last, following = min(first, same[0]), max(last, same[1]), min(following, same[2])
            table[name] = (first, last, following, shared or same is not None)
        return table
