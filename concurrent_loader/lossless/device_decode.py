"""Decodes prepared lossless images whose bytes are on the device, after the copy of the batch and before the crops.

The tile facts were copied with the bytes of each image. This module adds the addresses of the bytes and of the output.
Nothing waits for the device, and no bytes of an image are read on the CPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from concurrent_loader.lossless.prepare import FACT_COLUMNS, TilePlan
from concurrent_loader.lossless.tile_plan import NUM_FACTS
from concurrent_loader.storage.lossless.layout import HEADER_BYTES

__all__ = ["decode_prepared"]


def decode_prepared(payloads: Sequence[torch.Tensor], plans: Sequence[TilePlan], mode: str) -> list[torch.Tensor]:
    """Decodes images that `prepare_image` has prepared, in one launch.

    Args:
        payloads: Prepared bytes of each image, (n,) uint8, on one device; at least one image.
        plans: Plan of each image.
        mode: Mode that was passed to `prepare_image`.

    Returns:
        (C, H, W) uint8 for each image, on the device: its box, with C = 3 for ``"rgb"`` and C = 1 for ``"gray"``.

    Ordering: Runs on the current stream of the device.
    """
    sizes = [math.prod(plan.shape) if plan.num_tiles else 0 for plan in plans]
    starts = list(itertools.accumulate(sizes, initial=0))
    packed = [at for at, plan in enumerate(plans) if plan.num_tiles]
    out = torch.empty(starts[-1], dtype=torch.uint8, device=payloads[0].device)
    if packed:
        _launch([payloads[at] for at in packed], [plans[at] for at in packed], [starts[at] for at in packed], out)
    made = []
    for payload, plan, start, size in zip(payloads, plans, starts, sizes, strict=False):
        samples = out[start : start + size] if plan.num_tiles else payload[HEADER_BYTES:]  # stored without coding
        made.append(_in_mode(samples.view(plan.shape), mode))
    return made


def _launch(
    payloads: Sequence[torch.Tensor], plans: Sequence[TilePlan], starts: Sequence[int], out: torch.Tensor
) -> None:
    data, device = payloads[0], out.device
    moves = np.zeros((len(plans), NUM_FACTS + 1), np.int64)
    moves[:, FACT_COLUMNS] = np.array([payload.data_ptr() - data.data_ptr() for payload in payloads])[:, np.newaxis]
    moves[:, 5] = starts
    moves[:, NUM_FACTS] = [plan.num_tiles for plan in plans]
    # Copied from page-locked memory, so that the CPU does not wait for it.
    host = torch.empty(moves.shape, dtype=torch.int64, pin_memory=device.type == "cuda")
    host.numpy()[:] = moves
    there = host.to(device, non_blocking=True)
    num_tiles = sum(plan.num_tiles for plan in plans)
    facts = torch.cat([payload[: plan.facts_bytes] for payload, plan in zip(payloads, plans, strict=True)])
    facts = facts.view(torch.int64).view(num_tiles, NUM_FACTS)
    # Pass the number of tiles, because torch would otherwise wait for the device to learn it.
    facts += there[:, :NUM_FACTS].repeat_interleave(there[:, NUM_FACTS], dim=0, output_size=num_tiles)
    kernels: Any = import_module("concurrent_loader.lossless.kernel")
    # Triton launches on the current device, not on the device of its arguments.
    with torch.cuda.device(device.index if device.type == "cuda" else -1):
        kernels.decode_tiles_kernel[(num_tiles,)](facts, data, out, num_warps=kernels.NUM_WARPS)


def _in_mode(pixels: torch.Tensor, mode: str) -> torch.Tensor:
    """Converts to the mode exactly as `concurrent_loader.decode` does: gray is ITU-R BT.601 in Pillow's arithmetic."""
    if mode == "rgb" and len(pixels) == 1:
        return pixels.expand(3, -1, -1)
    if mode == "gray" and len(pixels) == 3:
        red, green, blue = pixels.int()
        gray: torch.Tensor = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
        return gray.to(torch.uint8).unsqueeze(0)
    return pixels
