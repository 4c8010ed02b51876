"""Recommends a number of groups if several ranks would fetch the same shards.

The order of samples must not depend on the number of ranks, so the default number of groups does not either. With more
ranks than groups, several ranks share a group, and each of them fetches its shards. The result is correct, but fetching
is slower and more expensive than necessary.
"""

from __future__ import annotations

import numpy as np

from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.mixture_plan import MixturePlan
from concurrent_loader.order.protocol import Plan

__all__ = ["advice"]

_RANKS_PER_CACHE = 8  # assumed number of ranks that share a cache folder: one per GPU of a typical machine


def advice(plan: Plan, world_size: int, *, is_cached: bool) -> str | None:
    """Returns a recommendation for the ``groups`` argument.

    Args:
        plan: Plan of any epoch.
        world_size: Number of ranks.
        is_cached: Whether the ranks of a machine share a cache, and therefore count as one reader.

    Returns:
        A recommendation for the log; None if only one rank reads each shard (except shards at group borders), or if no
        number of groups helps.
    """
    num_readers = -(-world_size // _RANKS_PER_CACHE) if is_cached else world_size
    shared = [order.num_groups for order in _orders_by_rank(plan) if _shares(order, num_readers)]
    if not shared:
        return None
    num_groups = max(shared)
    most = -(-num_readers // num_groups)
    which = f" (on {num_readers} machines, if each has {_RANKS_PER_CACHE} and a cache)" if is_cached else ""
    return (
        f"{world_size} ranks{which} share {num_groups} groups of shards, so up to {most} of them fetch the same shard; "
        f"in a new run pass groups={num_readers}, or a multiple. The order of samples depends on it: to continue a "
        f"run, or to keep this order, pass groups={num_groups}, which also silences this warning. "
        "See docs/explanation/order.md."
    )


def _orders_by_rank(plan: Plan) -> list[EpochPlan]:
    """Returns the orders whose batches are divided among the ranks."""
    if isinstance(plan, MixturePlan):
        children = [child for child in plan.children if isinstance(child, EpochPlan)]
        return [child for child in children if child.global_batch_size == plan.global_batch_size]
    return [plan] if isinstance(plan, EpochPlan) else []


def _shares(order: EpochPlan, num_readers: int) -> bool:
    if not order.shuffle or not order.num_groups < num_readers <= order.num_samples:
        return False
    # A shard of one sample has one reader, whatever the number of groups.
    return int(np.max(np.asarray(order.samples_per_unit), initial=0)) > 1
