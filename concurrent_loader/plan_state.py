"""A place in the order of samples as a handful of integers: what a checkpoint keeps of a loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from concurrent_loader.errors import LoaderStateError

if TYPE_CHECKING:
    from concurrent_loader.source import Plan

__all__ = ["PlanState"]

_VERSION = 1
_MEANING = {
    "seed": "seed",
    "global_batch_size": "global batch size (batch size times number of ranks)",
    "groups": "number of groups that an epoch is divided into",
    "window": "shuffle window, in samples",
    "shuffle": "shuffle",
    "fingerprint": "data set (fingerprint of its snapshot and selection)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """The position after ``step`` batches of an epoch, and what the order depends on.

    It says nothing of ranks, threads or caches: any number of ranks that divides the global batch size goes on from it.

    Attributes:
        epoch: From 0.
        step: Batches delivered in this epoch; the next one is number ``step``.
        seed: Of the order.
        global_batch_size: Samples a step, all ranks together.
        groups: The number in effect (`EpochPlan.num_groups`).
        window: Shuffle window in samples.
        shuffle: Whether samples are shuffled.
        fingerprint: Of the data set's snapshot, and of what is selected of it.
        version: Of this record and of the scheme in docs/order.md.
    """

    epoch: int
    step: int
    seed: int
    global_batch_size: int
    groups: int
    window: int
    shuffle: bool
    fingerprint: int
    version: int = _VERSION

    @classmethod
    def of(cls, plan: Plan, step: int) -> Self:
        """The state of a plan after ``step`` batches."""
        return cls(
            epoch=plan.epoch,
            step=step,
            seed=plan.seed,
            global_batch_size=plan.global_batch_size,
            groups=plan.num_groups,
            window=plan.window,
            shuffle=plan.shuffle,
            fingerprint=plan.fingerprint,
        )

    def to_dict(self) -> dict[str, int]:
        """Plain integers, for `torch.save` or JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_dict` wrote.

        Raises:
            LoaderStateError: It is not that, or of a version that this release does not know.
        """
        if not isinstance(data, Mapping):
            raise LoaderStateError("a loader's state is a dict", got=type(data).__name__)
        version = data.get("version")
        if version != _VERSION:
            raise LoaderStateError("the state is of another version", expected=_VERSION, got=version)
        names = [field.name for field in fields(cls)]
        if set(data) != set(names):
            raise LoaderStateError(
                "the state has missing or unknown entries", expected=names, got=sorted(map(str, data))
            )
        for name, value in data.items():
            if name == "shuffle" and not isinstance(value, bool):
                raise LoaderStateError("'shuffle' of the state is no bool", got=value)
            if name != "shuffle" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise LoaderStateError(f"{name!r} of the state is no non-negative integer", got=value)
        return cls(**data)

    def check(self, plan: Plan) -> None:
        """Makes sure that a plan gives the samples in the order in which this state counts them.

        Raises:
            LoaderStateError: It does not; the message names each difference.
        """
        here = PlanState.of(plan, self.step)
        differences = [
            f"{meaning}: {getattr(self, name)} in the state, {getattr(here, name)} here"
            for name, meaning in _MEANING.items()
            if getattr(self, name) != getattr(here, name)
        ]
        if differences:
            raise LoaderStateError("the state belongs to another order: " + "; ".join(differences))
        if self.step > plan.max_steps:
            raise LoaderStateError(
                "the state lies beyond the epoch's last step", expected=plan.max_steps, got=self.step
            )
