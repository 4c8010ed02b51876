"""The drop-in loader's position as plain values that torch.save keeps: between the loader and a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from concurrent_loader.errors import LoaderStateError
from concurrent_loader.order_source import Randomness, Start

__all__ = ["from_dict", "inexact", "to_dict"]

_KIND = "drop-in"
_VERSION = 1


def to_dict(start: Start, *, epoch: int | None) -> dict[str, Any]:
    """Writes a position down.

    Args:
        start: Where to go on.
        epoch: What a sampler was told by ``set_epoch``, or None.
    """
    return {
        "kind": _KIND,
        "version": _VERSION,
        "num_batches": start.num_batches,
        "epoch": epoch,
        "at_iter": _written(start.at_iter),
        "at_first": _written(start.at_first),
        "sampler": start.sampler,
    }


def inexact(why: str) -> dict[str, Any]:
    """Writes down that there is no position, so that a trainer that saves every loader's state can go on."""
    return {"kind": _KIND, "version": _VERSION, "why_not": why}


def from_dict(state: Mapping[str, Any]) -> tuple[Start, int | None, str | None]:
    """Reads a position.

    Returns:
        Where to go on; the sampler's epoch or None; and why there is no position, or None if there is one.

    Raises:
        LoaderStateError: The state is damaged, or of another kind of loader.
    """
    if state.get("kind") != _KIND or state.get("version") != _VERSION:
        raise LoaderStateError(
            "this is no state of a drop-in loader",
            expected=(_KIND, _VERSION),
            got=(state.get("kind"), state.get("version")),
        )
    if "why_not" in state:
        return Start(), None, str(state["why_not"])
    num_batches, epoch = state.get("num_batches"), state.get("epoch")
    start = Start(_count(num_batches), _read(state.get("at_iter")), _read(state.get("at_first")), state.get("sampler"))
    return start, None if epoch is None else _count(epoch), None


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LoaderStateError("the state is damaged: a count is not one", got=value)
    return value


def _written(randomness: Randomness | None) -> dict[str, Any] | None:
    return None if randomness is None else {"default": randomness.default, "named": list(randomness.named)}


def _read(written: Any) -> Randomness | None:
    if written is None:
        return None
    if isinstance(written, Mapping) and isinstance(named := written.get("named"), list):
        default = written.get("default")
        if all(isinstance(each, torch.Tensor) for each in (named if default is None else [default, *named])):
            return Randomness(default, tuple(named))
    raise LoaderStateError("the state is damaged: it has no states of random generators")
