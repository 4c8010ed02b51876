"""Implements the decoding of tiles as a Triton kernel: images of any sizes, one program per tile.

Imported only if images are on a CUDA device, because the module needs Triton.

The widths of a tile's 256 blocks take half a byte each. Prefix sums over the widths give the position of each block's
bit planes. Each value then collects one bit of each plane, and prefix sums along rows and columns undo the predictor.
Green is decoded first, because red and blue may be stored as differences from green. Most of the work is reading bytes
that neighboring threads also read. The bus to the device is the bottleneck, not this kernel.
"""

import triton
import triton.language as tl

__all__ = ["NUM_WARPS", "decode_tiles_kernel"]

NUM_WARPS = 8
NUM_FACTS = tl.constexpr(24)


@triton.jit
def _spread(by_block):
    """Repeats a value per block, (256,), for each sample of the block: (64, 64)."""
    wide = tl.broadcast_to(tl.reshape(by_block, (16, 1, 16, 1)), (16, 4, 16, 4))
    return tl.reshape(wide, (64, 64))


@triton.jit
def _samples(data, start, widths, top, second, rest, down, across, predictor):
    """Returns the samples of one channel of a tile, (64, 64) int32, before the reduction modulo 256."""
    block = tl.arange(0, 256)
    block_y = block // 16
    block_x = block % 16
    inside = (block_y < down) & (block_x < across)
    number = block_y * across + block_x
    code = tl.load(data + widths + number // 2, mask=inside, other=0).to(tl.int32)
    width = tl.where(inside, (code >> (number % 2 * 4)) & 15, 0)
    has_top = (width > 0).to(tl.int32)
    has_second = (width > 1).to(tl.int32)
    more = tl.maximum(width - 2, 0)
    # 32-bit offsets from the top planes need half the registers of 64-bit offsets into the whole batch.
    top_at = _spread(2 * (tl.cumsum(has_top, 0) - has_top))
    second_at = _spread(2 * (tl.cumsum(has_second, 0) - has_second) + (second - top).to(tl.int32))
    rest_at = _spread(2 * (tl.cumsum(more, 0) - more) + (rest - top).to(tl.int32))
    width = _spread(width)

    y = tl.arange(0, 64)[:, None]
    x = tl.arange(0, 64)[None, :]
    place = y % 4 * 4 + x % 4
    byte = place // 8
    bit = place % 8
    folded = tl.zeros((64, 64), tl.int32)
    for plane in tl.static_range(8):
        below = tl.where(plane == width - 2, second_at, rest_at + 2 * plane)
        at = tl.where(plane == width - 1, top_at, below) + byte
        bits = tl.load(data + top + at, mask=plane < width, other=0).to(tl.int32)
        folded |= ((bits >> bit) & 1) << plane
    value = (folded >> 1) ^ -(folded & 1)
    value += tl.where((y == 0) & (x == 0), tl.load(data + start).to(tl.int32), 0)
    if predictor == 0:
        value = tl.cumsum(tl.where(x == 0, tl.cumsum(value, 0), value), 1)
    else:
        along = tl.cumsum(value, 1)
        value = tl.cumsum(tl.where((predictor == 2) | (y == 0), along, value), 0)
    return value


@triton.jit
def decode_tiles_kernel(
    facts,  # (tiles, 24) int64, see tile_plan.NUM_FACTS
    data,  # uint8
    out,  # uint8: the box of each image as (C, H, W), in sequence
):
    """Decodes the channels of one tile and stores the samples that lie in the box."""
    fact = facts + tl.program_id(0).to(tl.int64) * NUM_FACTS
    mode = tl.load(fact).to(tl.int32)
    starts = tl.load(fact + 1)
    widths = tl.load(fact + 2)
    down = tl.load(fact + 3).to(tl.int32)
    across = tl.load(fact + 4).to(tl.int32)
    out_at = tl.load(fact + 5)
    height = tl.load(fact + 6)
    width = tl.load(fact + 7)
    y = tl.load(fact + 8) + tl.arange(0, 64)[:, None]
    x = tl.load(fact + 9) + tl.arange(0, 64)[None, :]
    channels = tl.load(fact + 10).to(tl.int32)
    wanted = tl.load(fact + 11).to(tl.int32)
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    to = out + out_at + y * width + x
    widths_bytes = (down * across + 1) // 2
    has_color = channels >= 3
    minus_green = (mode >> 8) & 1

    green = tl.zeros((64, 64), tl.int32)
    for turn in range(wanted):
        # Green, red, blue, alpha.
        channel = tl.where(has_color & (turn < 2), 1 - turn, turn)
        unit = fact + 12 + 3 * channel
        samples = _samples(
            data,
            starts + channel,
            widths + channel * widths_bytes,
            tl.load(unit),
            tl.load(unit + 1),
            tl.load(unit + 2),
            down,
            across,
            (mode >> (2 * channel)) & 3,
        )
        is_less = (minus_green != 0) & ((channel == 0) | (channel == 2))
        samples += tl.where(is_less, green, 0)
        if turn == 0:
            green = samples
        tl.store(to + channel * (height * width), (samples & 255).to(tl.uint8), mask=inside)
