"""What the nodes of a cluster ask a bucket for in an epoch: counted in the plans, nothing is sent."""

from __future__ import annotations

from collections import Counter

import numpy as np

from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.options import DEFAULT_GROUPS, parse_window
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.manifest.manifest import Manifest

PREFIX_REQUESTS_S = 5_500  # GETs per second and prefix that S3 serves at least, before it splits the prefix


def simulate_nodes(
    manifest: Manifest, nodes: int, *, global_batch_size: int, node_samples_s: float, follow_nodes: bool
) -> dict[str, float]:
    """Counts what each node's part of an epoch needs; each node has a cache that its ranks share, empty at first.

    A node is one rank here: the ranks of a node are neighbours, and together take what one rank in their place would.
    With ``follow_nodes`` the number of groups grows with the nodes; otherwise it is the default.
    """
    plan = EpochPlan(
        samples_per_shard=[entry.num_samples for entry in manifest.shards],
        global_batch_size=global_batch_size,
        groups=max(DEFAULT_GROUPS, nodes) if follow_nodes else None,
        window=parse_window("128MiB", manifest.num_bytes / manifest.num_samples),
        last_batch="drop",
    )
    sizes = np.array([entry.size for entry in manifest.shards], np.int64)
    chunks = -(-sizes // CHUNK_BYTES)
    step_s = global_batch_size / (nodes * node_samples_s)
    gets, fetched_bytes, by_second = 0, [], Counter[int]()
    for node in range(nodes):
        steps, shards = np.array(list(plan.shards_in_order(0, node, nodes)), np.int64).T
        gets += int(chunks[shards].sum())
        fetched_bytes.append(int(sizes[shards].sum()))
        seconds = np.bincount((steps * step_s).astype(np.int64), weights=chunks[shards])
        by_second.update({second: int(count) for second, count in enumerate(seconds)})
    mean_bytes = sum(fetched_bytes) / nodes
    epoch_s = plan.max_steps * step_s
    requests_s = gets / epoch_s
    return {
        "nodes": nodes,
        "groups": plan.num_groups,
        "gets": gets,  # of all nodes together; one for each started 8 MiB of a shard
        "bytes": sum(fetched_bytes),
        "bytes_ratio": sum(fetched_bytes) / manifest.num_bytes,  # 1 is each shard once
        "shared_shards": float(plan.shard_usage(nodes).shared.mean()),  # share that several nodes need
        "most_over_mean": max(fetched_bytes) / mean_bytes,  # bytes of the node that fetches most
        "least_over_mean": min(fetched_bytes) / mean_bytes,
        "epoch_s": epoch_s,  # at the assumed pace of the nodes
        "requests_s": requests_s,  # GETs per second to the prefix ``shards/``, over the epoch
        "busiest_requests_s": float(max(by_second.values())),  # if each shard is fetched when it is first needed
        "limit_share": requests_s / PREFIX_REQUESTS_S,
        "objects_limit_share": nodes * node_samples_s / PREFIX_REQUESTS_S,  # with one object and GET per sample
    }
