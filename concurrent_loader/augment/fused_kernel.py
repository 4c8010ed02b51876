"""The kernel behind `concurrent_loader.augment.fused`: a whole batch's pictures, of any sizes, in one launch.

Imported only where pictures are on a CUDA device, for it needs Triton.

One program makes a tile of 16 x 32 pixels of one picture. For each of its pixels it walks over the taps, rows outside,
columns inside, and adds a row's sum to the pixel's once a row. So the two passes of a separable resize become one, and
nothing is stored between them. The price is arithmetic: the columns' pass is made again for each of the (two, where a
picture shrinks) rows that want it, 4 multiplications for each byte of the source in place of about 2. That is cheap:
the bytes are read from memory once and then come from the first-level cache (what a tile sees is 16 s x 32 s bytes a
channel, 6 KiB for the three where the scale s is 2), and a long filter is a longer loop, not more memory. A warp is one
row of the tile: neighbouring threads read neighbouring bytes, s apart, and write neighbouring pixels. Each thread has
four pixels of three channels, so that twelve loads are under way at once. 32 divides the usual sizes (224, 192, 160,
128), 16 as well.
"""

import triton
import triton.language as tl

__all__ = ["BLOCK_X", "BLOCK_Y", "NUM_FACTS", "NUM_WARPS", "crop_resize_kernel"]

BLOCK_Y, BLOCK_X, NUM_WARPS = 16, 32, 4
NUM_FACTS = tl.constexpr(8)  # of a picture: address of the box, strides (c, y, x), rows, columns, mirrored, unused


@triton.jit
def _taps(at, start, extent, length, num_pixels):
    """The first pixel that each of some outputs sees, the one after its last, its centre, and the filter's scale."""
    scale = extent / length
    support = tl.maximum(scale, 1.0)
    centre = start + (at.to(tl.float32) + 0.5) * scale
    first = tl.floor(centre - support + 0.5).to(tl.int32)
    first = tl.minimum(tl.maximum(first, 0), num_pixels - 1)  # whatever the rounding: inside
    past = tl.minimum(tl.floor(centre + support + 0.5).to(tl.int32), num_pixels)
    return first, past, centre, 1.0 / support


@triton.jit
def _weights(tap, first, past, centre, shrink):
    pixel = first + tap
    distance = tl.abs((pixel.to(tl.float32) + 0.5 - centre) * shrink)
    return tl.where(pixel < past, tl.maximum(1.0 - distance, 0.0), 0.0)


@triton.jit
def _level(total, weight, multiply, add):
    """A channel's value as it is stored: the nearest level, scaled and shifted."""
    level = tl.floor(total / weight + 0.5)
    return tl.minimum(tl.maximum(level, 0.0), 255.0) * multiply + add


@triton.jit
def crop_resize_kernel(
    facts,  # (n, 8) int64
    places,  # (n, 4) float32: where the box begins within its first pixels (y, x); its height and width
    out,  # (n, 3, height, width), of any strides
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
    BLOCK_Y: tl.constexpr,  # noqa: N803 -- Triton's way of writing constants
    BLOCK_X: tl.constexpr,  # noqa: N803
):
    """Crops, resizes, mirrors and normalises one tile of one picture."""
    tiles_x = tl.cdiv(width, BLOCK_X)
    tiles = tiles_x * tl.cdiv(height, BLOCK_Y)
    picture = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles

    fact = facts + picture * NUM_FACTS
    source = tl.load(fact).to(tl.pointer_type(tl.uint8))
    source_c = tl.load(fact + 1).to(tl.int32)
    source_y = tl.load(fact + 2).to(tl.int32)
    source_x = tl.load(fact + 3).to(tl.int32)
    rows = tl.load(fact + 4).to(tl.int32)
    columns = tl.load(fact + 5).to(tl.int32)
    mirrored = tl.load(fact + 6) != 0
    place = places + picture * 4

    y = (tile // tiles_x) * BLOCK_Y + tl.arange(0, BLOCK_Y)
    x = (tile % tiles_x) * BLOCK_X + tl.arange(0, BLOCK_X)
    inside = (y < height)[:, None] & (x < width)[None, :]
    seen_y = tl.minimum(y, height - 1)
    seen_x = tl.minimum(x, width - 1)
    seen_x = tl.where(mirrored, width - 1 - seen_x, seen_x)
    first_y, past_y, centre_y, shrink_y = _taps(seen_y, tl.load(place), tl.load(place + 2), height, rows)
    first_x, past_x, centre_x, shrink_x = _taps(seen_x, tl.load(place + 1), tl.load(place + 3), width, columns)
    taps_y = tl.max(past_y - first_y, axis=0)
    taps_x = tl.max(past_x - first_x, axis=0)

    total_0 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    total_1 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    total_2 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    weight_y = tl.zeros((BLOCK_Y,), tl.float32)
    weight_x = tl.zeros((BLOCK_X,), tl.float32)
    for tap_x in range(taps_x):
        weight_x += _weights(tap_x, first_x, past_x, centre_x, shrink_x)
    for tap_y in range(taps_y):
        share_y = _weights(tap_y, first_y, past_y, centre_y, shrink_y)
        weight_y += share_y
        row = tl.minimum(first_y + tap_y, rows - 1) * source_y
        row_0 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
        row_1 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
        row_2 = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
        for tap_x in range(taps_x):
            share_x = _weights(tap_x, first_x, past_x, centre_x, shrink_x)[None, :]
            column = tl.minimum(first_x + tap_x, columns - 1) * source_x
            pixel = source + (row[:, None] + column[None, :])
            row_0 += share_x * tl.load(pixel).to(tl.float32)
            row_1 += share_x * tl.load(pixel + source_c).to(tl.float32)
            row_2 += share_x * tl.load(pixel + 2 * source_c).to(tl.float32)
        total_0 += share_y[:, None] * row_0
        total_1 += share_y[:, None] * row_1
        total_2 += share_y[:, None] * row_2

    weight = weight_y[:, None] * weight_x[None, :]
    place_out = picture.to(tl.int64) * stride_n + (y[:, None] * stride_y + x[None, :] * stride_x)
    kind = out.dtype.element_ty
    tl.store(out + place_out, _level(total_0, weight, multiply_0, add_0).to(kind), mask=inside)
    tl.store(out + place_out + stride_c, _level(total_1, weight, multiply_1, add_1).to(kind), mask=inside)
    tl.store(out + place_out + 2 * stride_c, _level(total_2, weight, multiply_2, add_2).to(kind), mask=inside)
