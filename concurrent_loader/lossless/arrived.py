"""Prepared lossless pictures whose bytes are on the device: between the one copy of a batch and its crops.

The facts came along with each picture's bytes; what is added to them here is where those bytes and the picture's output
lie. Nothing is waited for, and nothing of a picture is looked at.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from concurrent_loader.lossless.planning import NUM_FACTS
from concurrent_loader.lossless.preparing import FACT_COLUMNS, TilePlan
from storage.lossless.layout import HEADER_BYTES

__all__ = ["decode_prepared"]


def decode_prepared(payloads: Sequence[torch.Tensor], plans: Sequence[TilePlan], mode: str) -> list[torch.Tensor]:
    """Decodes pictures that `prepare_picture` has prepared, in one launch.

    Args:
        payloads: (n,) uint8 each, what it made, on one device; one at least.
        plans: What it said of them.
        mode: As it was told.

    Returns:
        (C, H, W) uint8 each, on the device: the part that was wanted; with ``"rgb"`` C = 3, with ``"gray"`` C = 1.

    Ordering: On the device's current stream.
    """
    sizes = [math.prod(plan.shape) if plan.num_tiles else 0 for plan in plans]
    starts = list(itertools.accumulate(sizes, initial=0))
    packed = [at for at, plan in enumerate(plans) if plan.num_tiles]
    out = torch.empty(starts[-1], dtype=torch.uint8, device=payloads[0].device)
    if packed:
        _launch([payloads[at] for at in packed], [plans[at] for at in packed], [starts[at] for at in packed], out)
    made = []
    for payload, plan, start, size in zip(payloads, plans, starts, sizes, strict=False):
        samples = out[start : start + size] if plan.num_tiles else payload[HEADER_BYTES:]  # stored as they are
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
    # From page-locked memory, so that nobody waits for it.
    host = torch.empty(moves.shape, dtype=torch.int64, pin_memory=device.type == "cuda")
    host.numpy()[:] = moves
    there = host.to(device, non_blocking=True)
    num_tiles = sum(plan.num_tiles for plan in plans)
    facts = torch.cat([payload[: plan.facts_bytes] for payload, plan in zip(payloads, plans, strict=True)])
    facts = facts.view(torch.int64).view(num_tiles, NUM_FACTS)
    # The number of tiles is given, for otherwise the device would be asked, and waited for.
    facts += there[:, :NUM_FACTS].repeat_interleave(there[:, NUM_FACTS], dim=0, output_size=num_tiles)
    kernels: Any = import_module("concurrent_loader.lossless.kernel")
    # Triton launches on the current device, whatever its arguments' is.
    with torch.cuda.device(device.index if device.type == "cuda" else -1):
        kernels.decode_tiles_kernel[(num_tiles,)](facts, data, out, num_warps=kernels.NUM_WARPS)


def _in_mode(pixels: torch.Tensor, mode: str) -> torch.Tensor:
    """As `concurrent_loader.decode` has it, to the bit: gray is that of ITU-R BT.601 in Pillow's arithmetic."""
    if mode == "rgb" and len(pixels) == 1:
        return pixels.expand(3, -1, -1)
    if mode == "gray" and len(pixels) == 3:
        red, green, blue = pixels.int()
        gray: torch.Tensor = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
        return gray.to(torch.uint8).unsqueeze(0)
    return pixels
