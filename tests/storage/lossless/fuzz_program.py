"""Decodes mutated lossless images until it has had its fill; a short run is test_fuzzing.py's.

    python fuzz_program.py SECONDS SEED

Wants nothing of the package but `concurrent_loader.storage.lossless`. To look for reads outside of buffers, build the
module with ``-fsanitize=address,undefined`` and run this under ``LD_PRELOAD=libasan.so ASAN_OPTIONS=detect_leaks=0``: a
fault ends the process. Whatever decodes is decoded in numpy as well, now and then, and must be the same. One line of
JSON counts.
"""

from __future__ import annotations

import json
import random
import sys
import time

import numpy as np

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.lossless import decode, encode, parse_header
from concurrent_loader.storage.lossless.decoder import index_units, plain_sections
from concurrent_loader.storage.lossless.layout import HEADER_BYTES, PACKED, parse_groups

SIZES = ((1, 1), (7, 70), (70, 7), (64, 64), (65, 130), (20, 600))
MAX_PIXELS = 1 << 16


def seeds() -> list[bytes]:
    """Small images of every kind."""
    made = []
    for channels, dtype in ((1, np.uint8), (2, np.uint8), (3, np.uint8), (4, np.uint8), (1, np.uint16)):
        for height, width in SIZES:
            dice = np.random.default_rng(height * width + channels)
            y, x = np.mgrid[:height, :width]
            most = np.iinfo(dtype).max
            soft = np.stack([0.4 + 0.2 * np.sin(x / 9 + at) + 0.2 * np.cos(y / 7 - at) for at in range(channels)])
            noise = dice.normal(0, 0.02, soft.shape)
            pixels = ((soft + noise).clip(0, 1) * most).astype(dtype)
            made += [encode(pixels, compress=compress) for compress in (True, False)]
    return made


def mutated(file: bytes, dice: random.Random) -> bytes:
    """The file with a few bytes changed, cut, doubled or exchanged; often in what says how long things are."""
    data = bytearray(file)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        kind, size = dice.random(), len(data)
        if not size:
            break
        near = size if dice.random() < 0.5 else min(size, 160)
        at = dice.randrange(near)
        if kind < 0.55:
            data[at] = dice.randrange(256)
        elif kind < 0.75:
            data[at] ^= 1 << dice.randrange(8)
        elif kind < 0.85:
            data[at] = dice.choice((0, 255, 8, 9, 15, 0x88))
        elif kind < 0.9:
            del data[at:]
        elif kind < 0.95:
            end = min(size, at + dice.randrange(1, 9))
            data[at:end] = data[at:end] * 2
        else:
            start = HEADER_BYTES + 4 * dice.randrange(6)
            data[start : start + 4] = dice.randrange(1 << dice.randrange(1, 33)).to_bytes(4, "little")
    return bytes(data)


def try_one(data: bytes, dice: random.Random) -> bool:
    """Whether it decodes; anything but pixels or a FormatError is for the caller to see."""
    also_in_numpy = dice.random() < 0.005
    try:
        pixels = decode(data, max_pixels=MAX_PIXELS, native="auto")
        header = parse_header(data)
        if header.mode == PACKED:
            groups = parse_groups(data, header)
            index_units(data, header, groups, plain_sections(data, groups))
        height, width = header.height, header.width
        top, left = dice.randrange(height), dice.randrange(width)
        box = top, left, dice.randrange(1, height - top + 1), dice.randrange(1, width - left + 1)
        part = decode(data, box=box, max_pixels=MAX_PIXELS)
        expected = pixels[:, top : top + box[2], left : left + box[3]]
        assert np.array_equal(part, expected), "a box is another image"
    except FormatError:
        pixels = None
    if also_in_numpy:
        try:
            other = decode(data, max_pixels=MAX_PIXELS, native=False)
        except FormatError:
            other = None
        assert (other is None) == (pixels is None), "one of them decodes it"
        assert other is None or np.array_equal(pixels, other), "they decode it to different pixels"
    return pixels is not None


def main() -> None:
    """Mutates for so many seconds."""
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    dice, files = random.Random(seed), seeds()
    end, num_inputs, num_decoded = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        for _ in range(100):
            num_decoded += try_one(mutated(dice.choice(files), dice), dice)
            num_inputs += 1
    print(json.dumps({"inputs": num_inputs, "decoded": num_decoded}))


if __name__ == "__main__":
    main()
