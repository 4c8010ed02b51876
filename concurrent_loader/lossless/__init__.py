"""Lossless pictures decoded where the batch is: a whole batch in one launch, only tiles that are needed."""

from concurrent_loader.lossless.batches import decode_batch, decode_crops
from concurrent_loader.lossless.planning import BatchPlan, plan_batch

__all__ = ["BatchPlan", "decode_batch", "decode_crops", "plan_batch"]
