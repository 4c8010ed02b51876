"""Ranks of a distributed run: which rank this process has, and advice where ranks share shards."""

from __future__ import annotations

import logging

import torch.distributed

from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.order.group_advice import advice
from concurrent_loader.order.protocol import Plan
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["check_rank", "rank_of_process", "warn_if_ranks_share_shards"]

log = logging.getLogger(__name__)

_logged: set[str] = set()  # advice that this process has logged


def rank_of_process(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns the rank of this process and the number of ranks.

    Args:
        rank: Rank given by the user; None for that of torch.distributed, or 0 where it is not initialized.
        world_size: Number of ranks given by the user; None for that of torch.distributed, or 1.

    Raises:
        ConfigurationError: Only one of the two is given, or the rank is out of range.
    """
    if (rank is None) != (world_size is None):
        raise ConfigurationError("pass both rank and world_size, or neither", got=(rank, world_size))
    if rank is None or world_size is None:
        if _is_distributed():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1
    if not 0 <= rank < world_size:
        raise ConfigurationError("rank must be in 0 … world_size - 1", got=(rank, world_size))
    return rank, world_size


def check_rank(rank: int, world_size: int) -> None:
    """Checks that a loader built without a rank still has this process's rank.

    A loader built before torch.distributed is initialized would deliver every rank's samples on every rank.

    Args:
        rank: Rank of the loader.
        world_size: Number of ranks when the loader was built.

    Raises:
        ConfigurationError: torch.distributed has been initialized after the loader was built.
    """
    if _is_distributed() and (now := rank_of_process(None, None)) != (rank, world_size):
        raise ConfigurationError(
            "the loader was built for a single process, before torch.distributed was initialized; build it afterwards, "
            "or pass rank and world_size",
            expected=f"rank {now[0]} of {now[1]}", got=f"rank {rank} of {world_size}",
        )  # fmt: skip


def warn_if_ranks_share_shards(dataset: LoadableDataset, plan: Plan, *, rank: int, world_size: int) -> None:
    """Warns on rank 0 if the default number of groups makes several ranks fetch the same shards.

    Each text is logged as a warning once per process, and as information afterwards.
    """
    text = advice(plan, world_size, is_cached=dataset.cache_dir is not None) if rank == 0 else None
    if text is not None:
        log.log(logging.INFO if text in _logged else logging.WARNING, "%s", text)
        _logged.add(text)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
