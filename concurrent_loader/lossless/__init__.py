"""Lossless pictures decoded where the batch is: a whole batch in one launch, only tiles that are needed."""

from concurrent_loader.lossless.arrived import decode_prepared
from concurrent_loader.lossless.batches import decode_batch, decode_crops
from concurrent_loader.lossless.planning import BatchPlan, plan_batch
from concurrent_loader.lossless.preparing import TilePlan, prepare_picture

__all__ = [
    "BatchPlan",
    "TilePlan",
    "decode_batch",
    "decode_crops",
    "decode_prepared",
    "plan_batch",
    "prepare_picture",
]
