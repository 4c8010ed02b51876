"""Decodes generated images in a process of its own and prints what each took: memory beyond the start, and seconds.

Usage: bomb_program.py memory | limited | lying_avif
"""

from __future__ import annotations

import ctypes
import io
import json
import resource
import struct
import sys
import zlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from concurrent_loader.decode import ImageHeader, make_decoder, parse_header
from concurrent_loader.decode.backends.libraries import LIBRARIES
from concurrent_loader.decode.crop import Box, make_crop_decoder
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.images import decoding_bytes
from concurrent_loader.storage.lossless import encode

SIDE = 1500


def status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def peak_of(call: Callable[[], object]) -> int:
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    try:
        call()
    except DecodeError as error:
        if "16-bit color" not in error.what:
            raise
    return status("VmHWM") - before


def files(side: int) -> dict[str, bytes]:
    ramp = np.add.outer(np.arange(side), np.arange(side)).astype(np.uint8)
    pixels = np.stack([ramp, ramp[::-1], ramp[:, ::-1]])
    gray, rgb = Image.fromarray(ramp), Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    rgba = rgb.copy()
    rgba.putalpha(gray)
    palette, turned = rgb.quantize(64), Image.Exif()
    turned[0x0112] = 6

    def saved(image: Image.Image, file_format: str, **options: Any) -> bytes:
        target = io.BytesIO()
        image.save(target, file_format, **options)
        return target.getvalue()

    return {
        "jpeg": saved(rgb, "JPEG", subsampling=0),
        "jpeg turned": saved(rgb, "JPEG", subsampling=0, exif=turned),
        "jpeg progressive": saved(rgb, "JPEG", subsampling=0, progressive=True),
        "jpeg progressive cmyk": saved(rgb.convert("CMYK"), "JPEG", progressive=True),
        "png": saved(rgba, "PNG", compress_level=1),
        "png 16": sixteen_bits(side),
        "gif": saved(palette, "GIF", transparency=3),
        "webp turned": saved(rgba, "WEBP", method=0, exif=turned),
        "avif": saved(rgba, "AVIF", speed=10, subsampling="4:4:4"),
        "lossless 16": encode(ramp[np.newaxis].astype(np.uint16) * 257),
    }


def sixteen_bits(side: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 16, 6, 0, 0, 0)
    rows = (b"\0" + bytes(8 * side)) * side
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def crop_of(data: bytes, native: bool) -> Callable[[], object]:
    out = np.zeros((3, 32, 32), np.uint8)
    decoder = make_crop_decoder("bytes", native=native)
    return lambda: decoder(data, lambda height, width: Box(0, 0, height, width, flip=True), out)


def ways_of(data: bytes) -> dict[str, Callable[[], object]]:
    header = parse_header(data)
    ways = {f"crop {native}": crop_of(data, native) for native in (header.format == "jpeg", False)}
    for library in LIBRARIES:
        module = import_module(f"concurrent_loader.decode.backends.{library}")
        if header.format in module.FORMATS:
            for mode in ("RGB", "GRAY", "UNCHANGED"):
                ways[f"{library} {mode}"] = partial(module.decode, data, header, mode)
    return ways


def memory() -> None:
    """Prints, for each file and way of decoding it, the memory taken and the memory foreseen."""
    for data in files(16).values():  # libraries and their tables are loaded
        for call in ways_of(data).values():
            peak_of(call)
    taken = {}
    for name, data in files(SIDE).items():
        for way, call in ways_of(data).items():
            taken[f"{name}, {way}"] = peak_of(call), decoding_bytes(parse_header(data))
    print(json.dumps(taken))


def limited() -> None:
    """Prints what becomes of images that need more memory than the process may have."""
    outcomes = {}
    for file_format in ("JPEG", "PNG", "WEBP", "GIF"):
        target = io.BytesIO()
        Image.new("RGB", (4000, 4000)).save(target, file_format)
        for backend in ("torchcodec", "torchvision", "simplejpeg", "pillow"):
            outcomes[f"{file_format} {backend}"] = (make_decoder("rgb", "image", backend=backend), target.getvalue())
    plain = encode(np.zeros((3, 4000, 4000), np.uint8))
    outcomes["lossless"] = (make_decoder("rgb", "image"), plain)
    torch.zeros(1).clone()
    ctypes.CDLL(None).malloc_trim(0)
    used = status("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (used + (10 << 20), used + (10 << 20)))
    said = {}
    for name, (decode, data) in outcomes.items():
        try:
            decode(data)
        except DecodeError as error:
            said[name] = error.what
    print(json.dumps(said))


def lying_avif() -> None:
    """Prints the memory that libraries take for a file that claims 16 x 16 pixels."""
    data = Path(__file__).with_name("claims_16x16.avif").read_bytes()
    small = io.BytesIO()
    Image.new("L", (16, 16)).save(small, "AVIF")
    taken = {}
    for library in ("pillow", "torchcodec"):
        module = import_module(f"concurrent_loader.decode.backends.{library}")
        header = ImageHeader("avif", 16, 16, 3)
        module.decode(small.getvalue(), header, "RGB")
        taken[library] = peak_of(partial(module.decode, data, header, "RGB"))
    print(json.dumps(taken))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"memory": memory, "limited": limited, "lying_avif": lying_avif}[sys.argv[1]]()
