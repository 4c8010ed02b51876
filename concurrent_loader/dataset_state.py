"""How far each worker of a loader has come, with the state of its dataset: what a checkpoint keeps of both."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["Place", "Places", "Stateful", "pack_state", "pack_states", "unpack_state"]


@runtime_checkable
class Stateful(Protocol):
    """A dataset, an iterator or a sampler that knows where it is."""

    def state_dict(self) -> Any:
        """Returns its position."""

    def load_state_dict(self, state: Any) -> None:
        """Goes to a position; a sampler or a dataset does so when it is next asked for an iterator."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far one worker has come.

    Attributes:
        state: Packed states of its dataset and iterator (see `pack_state`); None: as they are in a new worker.
        num_since: Number of batches that the worker has made since then.
        ended: Whether its dataset has come to its end.
    """

    state: bytes | None = None
    num_since: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """How far all workers have come; a loader without workers has one place.

    Attributes:
        workers: One place for each worker.
        turn: Number of the worker that makes the next batch.
        epoch_ended: Whether the next iteration begins a new epoch.
    """

    workers: tuple[Place, ...]
    turn: int = 0
    epoch_ended: bool = False


def pack_state(dataset: Any, iterator: Any = None) -> bytes | None:
    """Packs the present state of a dataset, and of an iterator over it, so that later changes do not reach it.

    Where the dataset is its own iterator, the state is the iterator's.

    Returns:
        The state in pickled form; None where neither has one.
    """
    return pack_states(
        dataset.state_dict() if isinstance(dataset, Stateful) and dataset is not iterator else None,
        iterator.state_dict() if isinstance(iterator, Stateful) else None,
    )


def pack_states(of_dataset: Any, of_iterator: Any) -> bytes | None:
    """Packs two states that were taken before; None stands for no state."""
    return None if of_dataset is None and of_iterator is None else pickle.dumps((of_dataset, of_iterator))


def unpack_state(state: bytes | None) -> tuple[Any, Any]:
    """Returns a new copy of the dataset's and the iterator's state; None where there was none."""
    if state is None:
        return None, None
    dataset, iterator = pickle.loads(state)  # noqa: S301 - packed by this loader, or by its worker
    return dataset, iterator
