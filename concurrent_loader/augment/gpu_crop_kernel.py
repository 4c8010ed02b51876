"""Implements `concurrent_loader.augment.gpu_crop` as a Triton kernel: one launch for a batch of images of any sizes.

Imported only if images are on a CUDA device, because the module needs Triton.

One program makes a tile of 16 × 32 pixels of one image. For each pixel it loops over the taps, rows outside and columns
inside, and adds the sum of each row to the pixel's. The two passes of a separable resize become one, and no
intermediate result is stored. The price is arithmetic: the column pass is repeated for each of the rows (two, where an
image shrinks) that need it. That is 4 multiplications per source byte instead of about 2. This is cheap, because bytes
are read from memory once and then come from the L1 cache: a tile reads 16 s × 32 s bytes per channel, 6 KiB for three
channels at a scale s of 2. A long filter is a longer loop and needs no more memory. A warp is one row of the tile, so
that neighboring threads read neighboring bytes, s apart, and write neighboring pixels. Each thread has four pixels of
three channels, so that twelve loads are in flight at once. 32 divides the usual sizes (224, 192, 160, 128), as does 16.
"""

import triton
import triton.language as tl

__all__ = ["BLOCK_X", "BLOCK_Y", "NUM_FACTS", "NUM_WARPS", "crop_resize_kernel"]

BLOCK_Y, BLOCK_X, NUM_WARPS = 16, 32, 4
NUM_FACTS = tl.constexpr(8)  # per image: address of the box, strides (c, y, x), rows, columns, mirrored, unused


@triton.jit
def _taps(at, start, extent, length, num_pixels):
    """Returns first tap, end of taps, center, and inverse width of the filter for each output position."""
    scale = extent / length
    support = tl.maximum(scale, 1.0)
    center = start + (at.to(tl.float32) + 0.5) * scale
    first = tl.floor(center - support + 0.5).to(tl.int32)
    first = tl.minimum(tl.maximum(first, 0), num_pixels - 1)  # rounding may leave the box
    past = tl.minimum(tl.floor(center + support + 0.5).to(tl.int32), num_pixels)
    return first, past, center, 1.0 / support


@triton.jit
def _weights(tap, first, past, center, shrink):
    pixel = first + tap
    distance = tl.abs((pixel.to(tl.float32) + 0.5 - center) * shrink)
    return tl.where(pixel < past, tl.maximum(1.0 - distance, 0.0), 0.0)


@triton.jit
def _level(total, weight, multiply, add):
    """Returns the value to store for a channel: the nearest level, scaled and shifted."""
    level = tl.floor(total / weight + 0.5)
    return tl.minimum(tl.maximum(level, 0.0), 255.0) * multiply + add


@triton.jit
def crop_resize_kernel(
    facts,  # (n, 8) int64
    places,  # (n, 4) float32: start of the box within its first pixel (y, x), its height and width
    out,  # (n, 3, height, width), with any strides
    height,
    width,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    multiply_0,
    multiply_1,
    multiply_2,
    add_0,
    add_1,
    add_2,
    BLOCK_Y: tl.constexpr,  # noqa: N803 -- Triton's convention for constants
    BLOCK_X: tl.constexpr,  # noqa: N803
):
    """Crops, resizes, mirrors and normalizes one tile of one image."""
    tiles_x = tl.cdiv(width, BLOCK_X)
    tiles = tiles_x * tl.cdiv(height, BLOCK_Y)
    image = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles

    fact = facts + image * NUM_FACTS
    source = tl.load(fact).to(tl.pointer_type(tl.uint8))
    source_c = tl.load(fact + 1).to(tl.int32)
    source_y = tl.load(fact + 2).to(tl.int32)
    source_x = tl.load(fact + 3).to(tl.int32)
    rows = tl.load(fact + 4).to(tl.int32)
    columns = tl.load(fact + 5).to(tl.int32)
    mirrored = tl.load(fact + 6) != 0
    place = places + image * 4

    y = (tile // tiles_x) * BLOCK_Y + tl.arange(0, BLOCK_Y)
    x = (tile % tiles_x) * BLOCK_X + tl.arange(0, BLOCK_X)
    inside = (y < height)[:, None] & (x < width)[None, :]
    seen_y = tl.minimum(y, height - 1)
    seen_x = tl.minimum(x, width - 1)
    seen_x = tl.where(mirrored, width - 1 - seen_x, seen_x)
    first_y, past_y, center_y, shrink_y = _taps(seen_y, tl.load(place), tl.load(place + 2), height, rows)
    first_x, past_x, center_x, shrink_x = _taps(seen_x, tl.load(place + 1), tl.load(place + 3), width, columns)
    taps_y = tl.max(past_y - first_y, axis=0)
    taps_x = tl.max(past_x - first_x, axis=0)

    total_0 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    total_1 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    total_2 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    weight_y = tl.zeros((BLOCK_Y,), tl.float32)
    weight_x = tl.zeros((BLOCK_X,), tl.float32)
    for tap_x in range(taps_x):
        weight_x += _weights(tap_x, first_x, past_x, center_x, shrink_x)
    for tap_y in range(taps_y):
        share_y = _weights(tap_y, first_y, past_y, center_y, shrink_y)
        weight_y += share_y
        row = tl.minimum(first_y + tap_y, rows - 1) * source_y
        row_0 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
        row_1 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
        row_2 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
        for tap_x in range(taps_x):
            share_x = _weights(tap_x, first_x, past_x, center_x, shrink_x)[None, :]
            column = tl.minimum(first_x + tap_x, columns - 1) * source_x
            pixel = source + (row[:, None] + column[None, :])
            row_0 += share_x * tl.load(pixel).to(tl.float32)
            row_1 += share_x * tl.load(pixel + source_c).to(tl.float32)
            row_2 += share_x * tl.load(pixel + 2 * source_c).to(tl.float32)
        total_0 += share_y[:, None] * row_0
        total_1 += share_y[:, None] * row_1
        total_2 += share_y[:, None] * row_2

    weight = weight_y[:, None] * weight_x[None, :]
    place_out = image.to(tl.int64) * stride_n + (y[:, None] * stride_y + x[None, :] * stride_x)
    kind = out.dtype.element_ty
    tl.store(out + place_out, _level(total_0, weight, multiply_0, add_0).to(kind), mask=inside)
    tl.store(out + place_out + stride_c, _level(total_1, weight, multiply_1, add_1).to(kind), mask=inside)
    tl.store(out + place_out + 2 * stride_c, _level(total_2, weight, multiply_2, add_2).to(kind), mask=inside)
