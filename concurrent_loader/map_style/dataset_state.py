"""Positions of a loader's workers and the states of their datasets, as a checkpoint keeps them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["Place", "Places", "Stateful", "pack_state", "pack_states", "unpack_state"]


@runtime_checkable
class Stateful(Protocol):
    """A dataset, an iterator or a sampler that can save and restore its position."""

    def state_dict(self) -> Any:
        """Returns the position."""

    def load_state_dict(self, state: Any) -> None:
        """Restores a position. For a sampler or dataset, the next iterator starts there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Position of one worker.

    Attributes:
        state: Packed states of its dataset and iterator (see `pack_state`); None for those of a new worker.
        num_since: Number of batches that the worker has made since that state.
        ended: Whether its dataset is exhausted.
    """

    state: bytes | None = None
    num_since: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """Positions of all workers. A loader without workers has one position.

    Attributes:
        workers: Position of each worker.
        turn: Number of the worker that makes the next batch.
        epoch_ended: Whether the next iteration starts a new epoch.
    """

    workers: tuple[Place, ...]
    turn: int = 0
    epoch_ended: bool = False


def pack_state(dataset: Any, iterator: Any = None) -> bytes | None:
    """Packs the current state of a dataset and of an iterator over it, so that later changes do not affect it.

    If the dataset is its own iterator, the state is the iterator's.

    Returns:
        The states in pickled form; None if neither has one.
    """
    return pack_states(
        dataset.state_dict() if isinstance(dataset, Stateful) and dataset is not iterator else None,
        iterator.state_dict() if isinstance(iterator, Stateful) else None,
    )


def pack_states(of_dataset: Any, of_iterator: Any) -> bytes | None:
    """Packs two states; None stands for no state."""
    return None if of_dataset is None and of_iterator is None else pickle.dumps((of_dataset, of_iterator))


def unpack_state(state: bytes | None) -> tuple[Any, Any]:
    """Returns new copies of the dataset's and the iterator's state; None for a missing one."""
    if state is None:
        return None, None
    dataset, iterator = pickle.loads(state)  # noqa: S301 - packed by this loader or by its worker
    return dataset, iterator
