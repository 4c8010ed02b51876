"""Encoding of the drop-in's position as plain values, for checkpoints in JSON or by torch.save.

The states of samplers, datasets and iterators are included unchanged.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import torch

from concurrent_loader.errors import LoaderStateError
from concurrent_loader.map_style.dataset_state import Place, Places, pack_states, unpack_state
from concurrent_loader.map_style.sampler_state import Randomness, ResumePoint

__all__ = ["from_dict", "inexact", "to_dict"]

_KIND = "drop-in"
_VERSION = 2


def to_dict(start: ResumePoint, *, epoch: int | None) -> dict[str, Any]:
    """Encodes a position.

    Args:
        start: Resume point.
        epoch: Epoch passed to the sampler by ``set_epoch``, or None.
    """
    return {
        "kind": _KIND,
        "version": _VERSION,
        "num_batches": start.num_batches,
        "apart": list(start.apart),
        "epoch": epoch,
        "at_begin": _written(start.at_begin),
        "at_iter": _written(start.at_iter),
        "at_first": _written(start.at_first),
        "sampler": start.sampler,
        "seed": start.seed,
        "places": _written_places(start.places),
    }


def inexact(why: str) -> dict[str, Any]:
    """Encodes that there is no position, so that a trainer can save every loader's state."""
    return {"kind": _KIND, "version": _VERSION, "why_not": why}


def from_dict(state: Mapping[str, Any]) -> tuple[ResumePoint, int | None, str | None]:
    """Decodes a position.

    Returns:
        The resume point; the sampler's epoch or None; and the reason why there is no position, or None if there is one.

    Raises:
        LoaderStateError: The state is damaged, or belongs to another kind of loader.
    """
    if state.get("kind") != _KIND or state.get("version") != _VERSION:
        raise LoaderStateError(
            "the state does not belong to a drop-in loader",
            expected=(_KIND, _VERSION),
            got=(state.get("kind"), state.get("version")),
        )
    if "why_not" in state:
        return ResumePoint(), None, str(state["why_not"])
    epoch, seed, apart = state.get("epoch"), state.get("seed"), state.get("apart")
    if not isinstance(apart, list):
        raise LoaderStateError("the state is damaged: it has no list of batches", got=apart)
    start = ResumePoint(
        num_batches=_count(state.get("num_batches")),
        apart=tuple(_count(number) for number in apart),
        at_begin=_read(state.get("at_begin")),
        at_iter=_read(state.get("at_iter")),
        at_first=_read(state.get("at_first")),
        sampler=state.get("sampler"),
        seed=None if seed is None else _count(seed),
        places=_read_places(state.get("places")),
    )
    return start, None if epoch is None else _count(epoch), None


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LoaderStateError("the state is damaged: a count must be a non-negative integer", got=value)
    return value


def _written(randomness: Randomness | None) -> dict[str, Any] | None:
    if randomness is None:
        return None
    default = randomness.default
    return {
        "default": None if default is None else _text(default),
        "named": [_text(generator) for generator in randomness.named],
    }


def _text(generator: torch.Tensor) -> str:
    return base64.b64encode(generator.numpy().tobytes()).decode()


def _read(written: Any) -> Randomness | None:
    if written is None:
        return None
    try:
        default = written["default"]
        return Randomness(
            None if default is None else _tensor(default), tuple(_tensor(each) for each in written["named"])
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise LoaderStateError("the state is damaged: it has no states of random generators") from error


def _tensor(text: str) -> torch.Tensor:
    state = torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
    torch.Generator().set_state(state)  # raises for an invalid state
    return state


def _written_places(places: Places | None) -> dict[str, Any] | None:
    if places is None:
        return None
    workers = []
    for place in places.workers:
        dataset, iterator = unpack_state(place.state)
        workers.append({"dataset": dataset, "iterator": iterator, "num_since": place.num_since, "ended": place.ended})
    return {"workers": workers, "turn": places.turn, "epoch_ended": places.epoch_ended}


def _read_places(written: Any) -> Places | None:
    if written is None:
        return None
    try:
        workers = tuple(
            Place(pack_states(each["dataset"], each["iterator"]), _count(each["num_since"]), _flag(each["ended"]))
            for each in written["workers"]
        )
        return Places(workers, _count(written["turn"]), _flag(written["epoch_ended"]))
    except (KeyError, TypeError) as error:
        raise LoaderStateError("the state is damaged: it has no positions of workers") from error


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise LoaderStateError("the state is damaged: a flag must be a boolean", got=value)
    return value
