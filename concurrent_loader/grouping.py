"""Says whether ranks would fetch the same shards, and what to pass against it: between the plan and the loader.

The order of samples must not follow the number of ranks, so the default number of groups does not either. Beyond as
many ranks several share a group, and each fetches its shards: correct, but slower and dearer than it need be.
"""

from __future__ import annotations

import logging

import numpy as np

from concurrent_loader.mixture_plan import MixturePlan
from concurrent_loader.plan import EpochPlan
from concurrent_loader.source import LoadableDataset, Plan

__all__ = ["advice", "say_if_ranks_share_shards"]

log = logging.getLogger(__name__)

_RANKS_A_CACHE = 8  # that a cache folder serves at most, it is assumed: one a GPU of the usual machine

_said: set[str] = set()


def say_if_ranks_share_shards(dataset: LoadableDataset, plan: Plan, *, rank: int, world_size: int) -> None:
    """Warns of the default number of groups where it makes ranks fetch the same shards; rank 0 speaks for all.

    Once a process and number; then it is mere information. For the loader to call where nobody chose ``groups``.
    """
    text = advice(plan, world_size, is_cached=dataset.cache_dir is not None) if rank == 0 else None
    if text is not None:
        log.log(logging.INFO if text in _said else logging.WARNING, "%s", text)
        _said.add(text)


def advice(plan: Plan, world_size: int, *, is_cached: bool) -> str | None:
    """Says what to pass.

    Args:
        plan: Of any epoch.
        world_size: Number of ranks.
        is_cached: Whether the ranks of a machine have a cache in common, and so count as one.

    Returns:
        One sentence; None where each shard has one reader, but for those at the borders, or nothing helps.
    """
    num_readers = -(-world_size // _RANKS_A_CACHE) if is_cached else world_size
    shared = [order.num_groups for order in _orders_by_rank(plan) if _shares(order, num_readers)]
    if not shared:
        return None
    num_groups = max(shared)
    most = -(-num_readers // num_groups)
    which = f" (on {num_readers} machines, if each has {_RANKS_A_CACHE} and a cache)" if is_cached else ""
    return (
        f"{world_size} ranks{which} share {num_groups} groups of shards, so up to {most} of them fetch the same shard; "
        f"in a new run pass groups={num_readers}, or a multiple. The order of samples depends on it: to go on with a "
        f"run, or to keep this order, pass groups={num_groups}, and nothing is said. See docs/order.md."
    )


def _orders_by_rank(plan: Plan) -> list[EpochPlan]:
    """The orders whose batches are divided among the ranks as they are."""
    if isinstance(plan, MixturePlan):
        return [child for child in plan.children if child.global_batch_size == plan.global_batch_size]
    return [plan] if isinstance(plan, EpochPlan) else []


def _shares(order: EpochPlan, num_readers: int) -> bool:
    if not order.shuffle or not order.num_groups < num_readers <= order.num_samples:
        return False
    # An object a sample has one reader, whatever the groups.
    return int(np.max(np.asarray(order.samples_per_shard), initial=0)) > 1
