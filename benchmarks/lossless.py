"""Lossless images, ours and others': ``python -m benchmarks.lossless [--json FILE] [--quick]``.

The ten photographs that scikit-image and scikit-learn carry, full size, and mosaics of them of 2048×1024. One thread
each, processor time, image by image in turns. Libraries that are not installed have a row that says so. L3's scheme
is our own writing of it, in numpy: its size is what counts, its rate is numpy's.
"""

from __future__ import annotations

import importlib
import io
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zstandard
from PIL import Image
from rich.console import Console

from benchmarks.command import bar, run_one_of
from benchmarks.l3_scheme import decode_l3, encode_l3
from benchmarks.lossless_gpu import GPU_KEYS, measure_on_gpu
from benchmarks.photos import CLASSES, open_photograph
from concurrent_loader.decode import Backend, make_decoder
from concurrent_loader.storage.lossless import decode, encode, has_native_lossless

Pixels = npt.NDArray[np.uint8]
CROP = 512


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    photographs: tuple[str, ...]
    mosaic: tuple[int, int]
    num_mosaics: int
    num_rounds: int


FULL = Load(CLASSES, (1024, 2048), 2, 7)
QUICK = Load(("cat", "coffee"), (576, 704), 1, 2)


@dataclass(frozen=True, slots=True)
class Codec:
    """A way of storing images."""

    name: str  # in the table
    format: str  # whose bytes it reads: codecs of one format share the first one's files
    decode: Callable[[Any], object]  # file → pixels, in whatever layout it likes best
    encode: Callable[[Pixels], Any] | None = None  # (H, W, 3) → file; None where another codec of the format writes it
    size: Callable[[Any], int] = len  # of a file, in bytes


# -- images ----------------------------------------------------------------------------------------------------------


def make_images(load: Load) -> dict[str, list[Pixels]]:
    """(H, W, 3) images of two sets: photographs, and mosaics of parts of them."""
    photographs = [np.asarray(open_photograph(name).convert("RGB")) for name in load.photographs]
    return {
        "photographs": photographs,
        "mosaics": [_mosaic(load.mosaic, photographs, number) for number in range(load.num_mosaics)],
    }


def _mosaic(size: tuple[int, int], photographs: list[Pixels], number: int) -> Pixels:
    """Fields of up to 512 by 512, each a photograph from its middle on; what it lacks is mirrored."""
    out = np.empty((*size, 3), np.uint8)
    which = number * 8
    for top in range(0, size[0], 512):
        for left in range(0, size[1], 512):
            photograph = photographs[which % len(photographs)]
            which += 1
            field = out[top : top + 512, left : left + 512]
            lacking = [max(0, want - have) for want, have in zip(field.shape, photograph.shape, strict=True)]
            padded = np.pad(photograph, ((0, lacking[0]), (0, lacking[1]), (0, 0)), mode="symmetric")
            field[:] = padded[: field.shape[0], : field.shape[1]]
    return out


# -- codecs ------------------------------------------------------------------------------------------------------------


def _saved(kind: str, **options: Any) -> Callable[[Pixels], bytes]:
    def save(pixels: Pixels) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind, **options)
        return file.getvalue()

    return save


def _opened(file: bytes) -> object:
    return np.asarray(Image.open(io.BytesIO(file)))


def _ours(**options: Any) -> Callable[[Pixels], bytes]:
    return lambda pixels: encode(np.ascontiguousarray(pixels.transpose(2, 0, 1)), **options)


def _torchvision_png() -> Callable[[bytes], object]:
    import torchvision.io  # noqa: F401 - registers the operators

    # The operator under torchvision.io.decode_png, which warns of its end in every call.
    return lambda file: torch.ops.image.decode_png(torch.frombuffer(bytearray(file), dtype=torch.uint8), 3, False)


def _registry(backend: Backend) -> Callable[[], Callable[[bytes], object]]:
    return lambda: make_decoder("rgb", "png", backend=backend)


def _of_module(name: str, function: str, prepare: Callable[[bytes], object] = bytes) -> Callable[[], Any]:
    def load() -> Callable[[bytes], object]:
        call = getattr(importlib.import_module(name), function)
        return lambda file: call(prepare(file))

    return load


def _opencv() -> Callable[[bytes], object]:
    cv2: Any = importlib.import_module("cv2")
    cv2.setNumThreads(1)
    return lambda file: cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)


def make_codecs() -> tuple[list[Codec], list[str]]:
    """Codecs that can be used here, and the names of those that cannot."""
    compressor, decompressor = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()
    codecs = [
        Codec("PNG level 6, Pillow", "png", _opened, _saved("PNG", compress_level=6)),
        Codec("ours", "lossless", decode, _ours()),
        Codec("ours, pack", "lossless-pack", decode, _ours(compress=False)),
        Codec("ours, numpy", "lossless", lambda file: decode(file, native=False)),
        Codec("WebP lossless, Pillow", "webp", _opened, _saved("WEBP", lossless=True, method=4)),
        Codec(
            "zstd raw", "zstd", lambda file: np.frombuffer(decompressor.decompress(file), np.uint8),
            lambda pixels: compressor.compress(pixels.tobytes()),
        ),
        Codec(
            "L3's scheme, our numpy", "l3", decode_l3, lambda pixels: encode_l3(pixels.transpose(2, 0, 1)),
            lambda image: int(image.num_bytes),
        ),
    ]  # fmt: skip
    optional: list[tuple[str, str, Callable[[], Any], Callable[[], Any] | None]] = [
        ("PNG, torchvision", "png", _torchvision_png, None),
        ("PNG, torchcodec", "png", _registry("torchcodec"), None),
        ("PNG, OpenCV", "png", _opencv, None),
        ("PNG, libspng (pyspng)", "png", _of_module("pyspng", "load"), None),
        ("PNG, libspng (imagecodecs)", "png", _of_module("imagecodecs", "spng_decode"), None),
        ("PNG, fpng", "png", _of_module("fpng_py", "fpng_decode_memory"), None),
        ("QOI (imagecodecs)", "qoi", _of_module("imagecodecs", "qoi_decode"), _encoder("qoi_encode")),
        ("JPEG XL lossless (imagecodecs)", "jxl", _of_module("imagecodecs", "jpegxl_decode"),
         _encoder("jpegxl_encode", lossless=True, effort=3, numthreads=1)),
    ]  # fmt: skip
    missing = []
    for name, kind, load, load_encoder in optional:
        try:
            codecs.append(Codec(name, kind, load(), load_encoder() if load_encoder else None))
        except (ImportError, AttributeError, RuntimeError, OSError, ValueError):
            missing.append(name)
    return codecs, missing


def _encoder(function: str, **options: Any) -> Callable[[], Callable[[Pixels], bytes]]:
    def load() -> Callable[[Pixels], bytes]:
        call = getattr(importlib.import_module("imagecodecs"), function)
        return lambda pixels: bytes(call(pixels, **options))

    return load


# -- measuring ---------------------------------------------------------------------------------------------------------


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.thread_time()
    made = function()
    return time.thread_time() - began, made


def measure_set(
    images: list[Pixels], codecs: list[Codec], num_rounds: int, tick: Callable[[], object]
) -> dict[str, dict[str, float]]:
    """For each codec bits a pixel, encoded and decoded 10^6 pixels a second; sums over images of their medians."""
    files: dict[str, list[Any]] = {}
    facts: dict[str, dict[str, float]] = {codec.name: {} for codec in codecs}
    mpix = sum(each.shape[0] * each.shape[1] for each in images) / 1e6
    for codec in codecs:
        if codec.encode is None:
            continue
        # Those that are slow are slow enough to be measured once.
        turns = num_rounds if codec.format.startswith("lossless") else 1
        timed = [[_timed(lambda: codec.encode(each)) for _ in range(turns)] for each in images]  # type: ignore[misc] # noqa: B023
        files[codec.format] = [each[0][1] for each in timed]
        facts[codec.name]["encode_mpix_s"] = mpix / sum(statistics.median(took for took, _ in each) for each in timed)
        bits = [
            8 * codec.size(file) / (p.shape[0] * p.shape[1])
            for file, p in zip(files[codec.format], images, strict=True)
        ]
        facts[codec.name]["bits_per_pixel"] = statistics.mean(bits)
        pngs = [8 * len(file) / (p.shape[0] * p.shape[1]) for file, p in zip(files["png"], images, strict=True)]
        facts[codec.name]["vs_png"] = statistics.mean(own / png for own, png in zip(bits, pngs, strict=True))
    took: dict[str, list[list[float]]] = {codec.name: [[] for _ in images] for codec in codecs}
    for turn in range(num_rounds + 1):
        for number in range(len(images)):
            first = (turn + number) % len(codecs)
            for codec in codecs[first:] + codecs[:first]:
                file = files[codec.format][number]
                seconds, _ = _timed(lambda: codec.decode(file))  # noqa: B023
                if turn:  # the first one warms up
                    took[codec.name][number].append(seconds)
        tick()
    for codec in codecs:
        facts[codec.name]["decode_mpix_s"] = mpix / sum(map(statistics.median, took[codec.name]))
    return facts


def crop_share(mosaic: Pixels, num_rounds: int) -> float:
    """Time of a crop of 512 by 512 over that of the whole mosaic; crops lie anywhere."""
    file = _ours()(mosaic)
    dice = np.random.default_rng(0)
    tops = dice.integers(0, mosaic.shape[0] - CROP + 1, 4 * num_rounds).tolist()
    lefts = dice.integers(0, mosaic.shape[1] - CROP + 1, 4 * num_rounds).tolist()
    decode(file)
    whole = statistics.median(_timed(lambda: decode(file))[0] for _ in tops)
    places = zip(tops, lefts, strict=True)
    part = statistics.median(_timed(lambda: decode(file, box=(top, left, CROP, CROP)))[0] for top, left in places)  # noqa: B023
    return part / whole


def check(images: list[Pixels]) -> None:
    """Makes sure that what is measured is lossless."""
    for pixels in images:
        wanted = pixels.transpose(2, 0, 1)
        if not all(np.array_equal(decode(_ours(compress=each)(pixels)), wanted) for each in (True, False)):
            raise RuntimeError("ours is not lossless")
        if not np.array_equal(decode_l3(encode_l3(wanted)), wanted):
            raise RuntimeError("the writing of L3's scheme is not lossless")


def run_benchmark(load: Load, console: Console) -> dict[str, object]:
    """Runs all codecs over all images."""
    torch.set_num_threads(1)
    sets = make_images(load)
    for images in sets.values():
        check(images)
    codecs, missing = make_codecs()
    with bar(console, "Rounds", len(sets) * (load.num_rounds + 1)) as progress:
        facts = {name: measure_set(images, codecs, load.num_rounds, progress.advance) for name, images in sets.items()}
    rows: list[dict[str, object]] = [
        {
            "set": name, "codec": codec.name,
            **{key: round(value, 4) for key, value in facts[name][codec.name].items()},
        }
        for name in sets for codec in codecs
    ]  # fmt: skip
    rows += [{"set": name, "codec": codec, "missing": True} for name in sets for codec in missing]

    def best_png(name: str) -> float:
        return max(facts[name][codec.name]["decode_mpix_s"] for codec in codecs if codec.format == "png")

    def rate(codec: str) -> float:
        return statistics.geometric_mean(facts[name][codec]["decode_mpix_s"] / best_png(name) for name in sets)

    return {
        "native": has_native_lossless(),
        "rounds": load.num_rounds,
        "rows": rows,
        "best_png": max(
            (codec.name for codec in codecs if codec.format == "png"),
            key=lambda codec: facts["photographs"][codec]["decode_mpix_s"],
        ),
        "size_vs_png": round(facts["photographs"]["ours"]["vs_png"], 4),
        "size_pack_vs_png": round(facts["photographs"]["ours, pack"]["vs_png"], 4),
        "decode_vs_png": round(rate("ours"), 3),
        "decode_pack_vs_png": round(rate("ours, pack"), 3),
        "crop_vs_full": round(crop_share(sets["mosaics"][0], load.num_rounds), 4),
        "encode_mpix_s": round(min(facts[name]["ours"]["encode_mpix_s"] for name in sets), 2),
        **(measure_on_gpu(sets["mosaics"], load.num_rounds) if torch.cuda.is_available() else dict.fromkeys(GPU_KEYS)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    return run_one_of("lossless", __doc__, run_benchmark, FULL, QUICK, arguments)


if __name__ == "__main__":
    sys.exit(main())
