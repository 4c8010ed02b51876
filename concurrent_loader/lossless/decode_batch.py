"""Decodes a batch of lossless images on a device, without a loader.

On a CUDA device, one copy transfers all bytes and one launch decodes them, for images of any sizes. Elsewhere, or
without Triton, `concurrent_loader.storage.lossless.decode` makes the same pixels, one image after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch

from concurrent_loader.augment.gpu_crop import boxes_and_flips, crop_resize
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Box
from concurrent_loader.decode.header import Buffer
from concurrent_loader.errors import DecodeError
from concurrent_loader.lossless.tile_plan import BatchPlan, plan_batch
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.lossless import decode

__all__ = ["decode_batch", "decode_crops", "launch"]


@cache
def _has_kernel() -> bool:
    try:
        import_module("concurrent_loader.lossless.kernel")
    except (ImportError, RuntimeError):
        return False
    return True


def decode_batch(
    files: Sequence[Buffer],
    boxes: Sequence[Box | None] | None = None,
    *,
    device: torch.device | str = "cpu",
    alpha: bool = False,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    kernel: bool | Literal["auto"] = "auto",
) -> list[torch.Tensor]:
    """Decodes a batch of lossless images, or a box of each.

    Args:
        files: Encoded images with 8 bits per channel.
        boxes: Part of each image to decode; None decodes the whole image. Only the tiles of the part are decoded.
            ``flip`` is ignored.
        device: Device of the result. Default ``"cpu"``.
        alpha: Whether to return an alpha channel. Default False.
        max_pixels: Maximum number of pixels; a larger image is refused before memory is allocated.
        kernel: Whether to use Triton. The default ``"auto"`` uses Triton on CUDA devices if it is installed.

    Returns:
        A tensor (C, H, W) uint8 for each image, on the device. The tensors share memory.

    Raises:
        DecodeError: `plan_batch` refuses a file or a box. Nothing is launched in this case.

    Ordering: Runs on the current stream of the device.
    Thread-safety: May be called from any number of threads.

    Example:
        >>> import numpy as np
        >>> from concurrent_loader.lossless import decode_batch
        >>> from concurrent_loader.storage.lossless import encode
        >>> (image,) = decode_batch([encode(np.zeros((3, 48, 64), np.uint8))])
        >>> image.shape
        torch.Size([3, 48, 64])
    """
    device = torch.device(device)
    if kernel is True or (kernel == "auto" and device.type == "cuda" and _has_kernel()):
        return launch(plan_batch(files, boxes, alpha=alpha, max_pixels=max_pixels), device)
    made = []
    for at, data in enumerate(files):
        box = boxes[at] if boxes is not None else None
        place = None if box is None else (box.top, box.left, box.height, box.width)
        try:
            pixels = decode(data, box=place, alpha=alpha, max_pixels=max_pixels)
        except (FormatError, ValueError) as error:
            raise DecodeError(str(error), sample=at) from error
        if pixels.dtype != np.uint8:
            raise DecodeError("decode_batch takes only images with 8 bits", sample=at, expected=8, got=16)
        made.append(torch.from_numpy(pixels).to(device))
    return made


def decode_crops(
    files: Sequence[Buffer],
    boxes: Sequence[Box],
    size: int | tuple[int, int],
    *,
    device: torch.device | str = "cpu",
    max_pixels: int = DEFAULT_MAX_PIXELS,
    kernel: bool | Literal["auto"] = "auto",
    **options: Any,
) -> torch.Tensor:
    """Decodes a box of each image and makes one batch of crops: decodes tiles, crops, resizes, mirrors, normalizes.

    Args:
        files: Encoded images with 8 bits per channel.
        boxes: Part of each image.
        size: Height and width of the output in pixels, or its side.
        device: Device of the result. Default ``"cpu"``.
        max_pixels: Maximum number of pixels, as for `decode_batch`.
        kernel: Whether to use Triton for both launches, as for `decode_batch`.
        **options: ``mean``, ``std``, ``dtype``, ``channels_last`` or ``out`` of
            `concurrent_loader.augment.gpu_crop.crop_resize`.

    Returns:
        (n, 3, height, width).

    Raises:
        DecodeError: `plan_batch` refuses a file or a box.
        ConfigurationError: `crop_resize` refuses an option.
    """
    parts = decode_batch(files, boxes, device=device, max_pixels=max_pixels, kernel=kernel)
    whole = [Box(0, 0, box.height, box.width, box.flip) for box in boxes]
    return crop_resize(parts, *boxes_and_flips(whole), size, kernel=kernel, **options)


def launch(plan: BatchPlan, device: torch.device) -> list[torch.Tensor]:
    """Copies the bytes of a plan to the device and decodes them with one launch."""
    num_bytes = len(plan.data)
    begin = -(-num_bytes // 8) * 8
    # Everything goes in one copy, from page-locked memory, so that the CPU does not wait for it.
    whole = torch.empty(begin + plan.facts.nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    whole[:num_bytes] = torch.from_numpy(plan.data)
    whole[begin:] = torch.from_numpy(plan.facts.view(np.uint8).reshape(-1))
    there = whole.to(device, non_blocking=True)
    out = torch.empty(plan.starts[-1], dtype=torch.uint8, device=device)
    for plain in plan.plain:
        first, end = plan.starts[plain.image], plan.starts[plain.image + 1]
        out[first:end] = there[plain.start : plain.start + end - first]
    if len(plan.facts):
        kernels: Any = import_module("concurrent_loader.lossless.kernel")
        # Triton launches on the current device, not on the device of its arguments.
        with torch.cuda.device(device.index if device.type == "cuda" else -1):
            kernels.decode_tiles_kernel[(len(plan.facts),)](
                there[begin:].view(torch.int64), there, out, num_warps=kernels.NUM_WARPS
            )
    return [
        out[first:end].view(shape) for first, end, shape in zip(plan.starts, plan.starts[1:], plan.shapes, strict=False)
    ]
