"""Decodes lossless images on the device of the batch: one launch per batch, and only the tiles that are needed."""

from concurrent_loader.lossless.decode_batch import decode_batch, decode_crops
from concurrent_loader.lossless.device_decode import decode_prepared
from concurrent_loader.lossless.prepare import TilePlan, prepare_image
from concurrent_loader.lossless.tile_plan import BatchPlan, plan_batch

__all__ = [
    "BatchPlan",
    "TilePlan",
    "decode_batch",
    "decode_crops",
    "decode_prepared",
    "plan_batch",
    "prepare_image",
]
