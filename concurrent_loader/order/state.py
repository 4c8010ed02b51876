"""Stores a position in the order of samples as a few integers, for a loader's checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from concurrent_loader.errors import LoaderStateError
from concurrent_loader.order.protocol import Plan

__all__ = ["PlanState"]

_VERSION = 1
_HEAD = "recorder_head"
_MEANING = {
    "seed": "seed",
    "global_batch_size": "global batch size (batch size times number of ranks)",
    "groups": "number of groups that an epoch is divided into",
    "window": "shuffle window, in samples",
    "shuffle": "shuffle",
    "fingerprint": "dataset (fingerprint of its snapshot and selection)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """The position after ``step`` batches of an epoch, and everything that the order depends on.

    The state is independent of ranks, threads and caches. Any number of ranks that divides the global batch size can
    continue from it.

    Attributes:
        epoch: Number of the epoch, from 0.
        step: Number of batches delivered in this epoch, and number of the next batch.
        seed: Seed of the order.
        global_batch_size: Number of samples per step, over all ranks.
        groups: Number of groups in effect (`EpochPlan.num_groups`).
        window: Shuffle window in samples.
        shuffle: Whether samples are shuffled.
        fingerprint: Fingerprint of the dataset's snapshot and selection.
        version: Version of this record and of the scheme in docs/explanation/order.md.
        recorder_head: Head of the flight recorder's hash chain at this position; None without a recorder.
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
    recorder_head: str | None = None

    @classmethod
    def of(cls, plan: Plan, step: int, recorder_head: str | None = None) -> Self:
        """Returns the state of a plan after ``step`` batches."""
        return cls(
            epoch=plan.epoch,
            step=step,
            seed=plan.seed,
            global_batch_size=plan.global_batch_size,
            groups=plan.num_groups,
            window=plan.window,
            shuffle=plan.shuffle,
            fingerprint=plan.fingerprint,
            recorder_head=recorder_head,
        )

    def to_dict(self) -> dict[str, int | str]:
        """Returns the state as plain values, for `torch.save` or JSON. Without a flight recorder there is no head."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Returns the state that `to_dict` returned as a dict.

        Raises:
            LoaderStateError: ``data`` is not such a dict, or has a version that this release does not support.
        """
        if not isinstance(data, Mapping):
            raise LoaderStateError("a loader's state must be a dict", got=type(data).__name__)
        version = data.get("version")
        if version != _VERSION:
            raise LoaderStateError("the state has an unsupported version", expected=_VERSION, got=version)
        names = [field.name for field in fields(cls) if field.name != _HEAD]
        if set(data) - {_HEAD} != set(names):
            raise LoaderStateError(
                "the state has missing or unknown entries", expected=names, got=sorted(map(str, data))
            )
        head = data.get(_HEAD)
        if head is not None and not (isinstance(head, str) and re.fullmatch("[0-9a-f]{32}", head)):
            raise LoaderStateError(f"{_HEAD!r} of the state must be 32 hex digits", got=head)
        for name in names:
            value = data[name]
            if name == "shuffle" and not isinstance(value, bool):
                raise LoaderStateError("'shuffle' of the state must be a bool", got=value)
            if name != "shuffle" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise LoaderStateError(f"{name!r} of the state must be a non-negative integer", got=value)
        return cls(**data)

    def check(self, plan: Plan) -> None:
        """Checks that a plan has the order of samples that this state belongs to.

        Raises:
            LoaderStateError: The orders differ, or the state lies beyond the epoch's end. The error names all
                differences.
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
                "the state lies beyond the epoch's last step", expected=f"at most {plan.max_steps}", got=self.step
            )
