"""Files that version 1 has written must be read for ever, and a second reader, from
docs/reference/lossless_format.md alone, agrees.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard

from concurrent_loader.storage.lossless import decode, encode

GOLDEN = Path(__file__).with_name("golden")
KINDS = {"gray": (1, np.uint8), "rgb": (3, np.uint8), "rgba": (4, np.uint8), "gray16": (1, np.uint16)}
HEIGHT, WIDTH = 21, 70


def golden_picture(name: str) -> np.ndarray:
    """Whole numbers only: the same on every machine."""
    channels, dtype = KINDS[name]
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    planes = [(x * x // (7 + at) + 3 * y * (at + 1) + (x * 31 + y * 17 + at) % 5) % 251 for at in range(channels)]
    return (np.stack(planes) * (1 if dtype == np.uint8 else 201)).astype(dtype)


@pytest.mark.parametrize("name", KINDS)
def test_golden_files(name):
    for file in (GOLDEN / f"{name}.pack", GOLDEN / f"{name}.zstd"):
        assert np.array_equal(decode(file.read_bytes()), golden_picture(name))
    assert encode(golden_picture(name), compress=False) == (GOLDEN / f"{name}.pack").read_bytes()


def second_reader(data: bytes) -> np.ndarray:
    """Reads a packed image sample by sample, as the specification has it."""
    magic, version, mode, channels, bits, width, height, side, group_tiles, zero = struct.unpack_from(
        "<4sBBBBIIBBH", data
    )
    assert (magic, version, mode, side, zero) == (b"\x8eCLL", 1, 1, 64, 0)
    size, most = bits // 8, 1 << bits
    rows, columns = -(-height // 64), -(-width // 64)
    groups = [(row, first) for row in range(rows) for first in range(0, columns, group_tiles)]
    at = 20 + 12 * len(groups)
    out = [[[0] * width for _ in range(height)] for _ in range(channels)]
    for number, (row, first) in enumerate(groups):
        stored, coded, rest_bytes = struct.unpack_from("<III", data, 20 + 12 * number)
        section, rest = data[at : at + stored], data[at + stored : at + stored + rest_bytes]
        at += stored + rest_bytes
        if stored != coded:
            section = zstandard.ZstdDecompressor().decompress(section)
        num_tiles = min(group_tiles, columns - first)
        high = min(64, height - 64 * row)
        wide = [min(64, width - 64 * (first + tile)) for tile in range(num_tiles)]
        place = 2 * num_tiles + num_tiles * channels * size
        units = []
        for tile in range(num_tiles):
            blocks = -(-high // 4) * -(-wide[tile] // 4)
            for channel in range(channels):
                codes = [section[place + block // 2] >> 4 * (block % 2) & 15 for block in range(blocks)]
                units.append((tile, channel, [16 if code == 15 else code for code in codes]))
                place += (blocks + 1) // 2
        top = place
        second = top + 2 * sum(each > 0 for *_, widths in units for each in widths)
        below = 0
        tiles = [[None] * channels for _ in range(num_tiles)]
        for tile, channel, widths in units:
            mode = struct.unpack_from("<H", section, 2 * tile)[0]
            begin = 2 * num_tiles + (tile * channels + channel) * size
            start = int.from_bytes(section[begin : begin + size], "little")
            residual = [[0] * 64 for _ in range(64)]
            for block, bits_of in enumerate(widths):
                values = [0] * 16
                for plane in range(bits_of):
                    if plane == bits_of - 1:
                        word, top = section[top : top + 2], top + 2
                    elif plane == bits_of - 2:
                        word, second = section[second : second + 2], second + 2
                    else:
                        word, below = rest[below : below + 2], below + 2
                    for i in range(16):
                        values[i] |= (int.from_bytes(word, "little") >> i & 1) << plane
                across = -(-wide[tile] // 4)
                for i, value in enumerate(values):
                    signed = value // 2 if value % 2 == 0 else -(value + 1) // 2
                    residual[block // across * 4 + i // 4][block % across * 4 + i % 4] = signed
            residual[0][0] += start
            x = [[0] * 64 for _ in range(64)]
            predictor = mode >> 2 * channel & 3
            for j in range(high):
                for i in range(wide[tile]):
                    left, up = (x[j][i - 1] if i else 0), (x[j - 1][i] if j else 0)
                    if predictor == 2:
                        guess = left + up - (x[j - 1][i - 1] if i and j else 0)
                    elif predictor == 0:
                        guess = left if i else up
                    else:
                        guess = up if j else left
                    x[j][i] = (guess + residual[j][i]) % most
            tiles[tile][channel] = x
        for tile in range(num_tiles):
            minus_green = struct.unpack_from("<H", section, 2 * tile)[0] >> 8 & 1
            for channel in range(channels):
                for j in range(high):
                    for i in range(wide[tile]):
                        value = tiles[tile][channel][j][i]
                        if minus_green and channel in (0, 2):
                            value += tiles[tile][1][j][i]
                        out[channel][64 * row + j][64 * (first + tile) + i] = value % most
    assert at == len(data)
    return np.array(out)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kind", ["pack", "zstd"])
def test_a_second_reader_agrees(name, kind):
    assert np.array_equal(second_reader((GOLDEN / f"{name}.{kind}").read_bytes()), golden_picture(name))
