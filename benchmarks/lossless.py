"""Lossless images, ours and others': ``python -m benchmarks.lossless [--json FILE] [--quick]``.

The ten photographs that scikit-image and scikit-learn carry, full size, and mosaics of them of 2048×1024. One thread
each, processor time, image by image in turns. Libraries that are not installed have a row that says so. L3's scheme is
our own implementation in numpy: its size counts, its rate is numpy's.
"""

from __future__ import annotations

import importlib
import io
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torchvision.io  # noqa: F401 - registers the operators
import zstandard
from PIL import Image
from rich.console import Console

from benchmarks.command import bar, in_turns_by_item, program, rounds
from benchmarks.l3_scheme import decode_l3, encode_l3
from benchmarks.photos import CLASSES, open_photograph, saved
from concurrent_loader.decode import make_decoder
from concurrent_loader.lossless import decode_batch
from concurrent_loader.storage.lossless import decode, encode, has_native_lossless

Pixels = npt.NDArray[np.uint8]
Facts = dict[str, dict[str, float]]  # codec → figure → value
CROP = 512
GPU_KEYS = ("gpu_decode_mpix_s", "gpu_prepare_vs_png", "gpu_train_vs_png")
_BATCH = 16  # images on a GPU


class Load(NamedTuple):
    """How much is measured."""

    photographs: tuple[str, ...]
    mosaic: tuple[int, int]
    num_mosaics: int
    num_rounds: int


FULL = Load(CLASSES, (1024, 2048), 2, 7)
QUICK = Load(("cat", "coffee"), (576, 704), 1, 2)


class Codec(NamedTuple):
    """A way of storing images; codecs of one format share the first one's files."""

    name: str
    format: str
    decode: Callable[[Any], object]  # file → pixels, in whatever layout it likes best
    encode: Callable[[Pixels], Any] | None = None  # (H, W, 3) → file; None where another codec writes the format
    size: Callable[[Any], int] = len  # of a file, in bytes


# -- images ------------------------------------------------------------------------------------------------------------


def make_images(load: Load) -> dict[str, list[Pixels]]:
    """Returns (H, W, 3) images of two sets: photographs, and mosaics of parts of them."""
    photographs = [np.asarray(open_photograph(name).convert("RGB")) for name in load.photographs]
    mosaics = [_mosaic(load.mosaic, photographs, number * 8) for number in range(load.num_mosaics)]
    return {"photographs": photographs, "mosaics": mosaics}


def _mosaic(size: tuple[int, int], photographs: list[Pixels], first: int) -> Pixels:
    """Fields of up to 512 by 512, each another photograph; what it lacks is mirrored."""
    out = np.empty((*size, 3), np.uint8)
    for number, (top, left) in enumerate(product(range(0, size[0], 512), range(0, size[1], 512)), first):
        photograph = photographs[number % len(photographs)]
        field = out[top : top + 512, left : left + 512]
        lacking = [max(0, want - have) for want, have in zip(field.shape, photograph.shape, strict=True)]
        padded = np.pad(photograph, ((0, lacking[0]), (0, lacking[1]), (0, 0)), mode="symmetric")
        field[:] = padded[: field.shape[0], : field.shape[1]]
    return out


# -- codecs ------------------------------------------------------------------------------------------------------------


def _ours(pixels: Pixels, **options: Any) -> bytes:
    return encode(np.ascontiguousarray(pixels.transpose(2, 0, 1)), **options)


def _by_pillow(kind: str, **options: Any) -> Callable[[Pixels], bytes]:
    return lambda pixels: saved(Image.fromarray(pixels), kind, **options)


def _torchvision_png(file: bytes) -> object:
    # The operator under torchvision.io.decode_png, which warns of its end in every call.
    return torch.ops.image.decode_png(torch.frombuffer(bytearray(file), dtype=torch.uint8), 3, False)


def _opencv_png() -> Callable[[bytes], object]:
    cv2: Any = importlib.import_module("cv2")
    cv2.setNumThreads(1)
    return lambda file: cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)


def make_codecs() -> tuple[list[Codec], list[str]]:
    """Returns the codecs that can be used here, and the names of those that cannot."""
    compressor, decompressor = zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor()

    def opened(file: bytes) -> object:
        return np.asarray(Image.open(io.BytesIO(file)))

    codecs = [
        Codec("PNG level 6, Pillow", "png", opened, _by_pillow("PNG", compress_level=6)),
        Codec("ours", "lossless", decode, _ours),
        Codec("ours, pack", "lossless-pack", decode, partial(_ours, compress=False)),
        Codec("ours, numpy", "lossless", partial(decode, native=False)),
        Codec("WebP lossless, Pillow", "webp", opened, _by_pillow("WEBP", lossless=True, method=4)),
        Codec(
            "zstd raw", "zstd", lambda file: np.frombuffer(decompressor.decompress(file), np.uint8),
            lambda pixels: compressor.compress(pixels.tobytes()),
        ),
        Codec(
            "L3's scheme, our numpy", "l3", decode_l3, lambda pixels: encode_l3(pixels.transpose(2, 0, 1)),
            lambda image: int(image.num_bytes),
        ),
        Codec("PNG, torchvision", "png", _torchvision_png),
    ]  # fmt: skip

    def of_imagecodecs(name: str, **options: Any) -> Callable[[Any], Any]:
        return partial(getattr(importlib.import_module("imagecodecs"), name), **options)

    optional: dict[str, Callable[[str], Codec]] = {
        "PNG, torchcodec": lambda name: Codec(name, "png", make_decoder("rgb", "png", backend="torchcodec")),
        "PNG, OpenCV": lambda name: Codec(name, "png", _opencv_png()),
        "PNG, libspng (imagecodecs)": lambda name: Codec(name, "png", of_imagecodecs("spng_decode")),
        "QOI (imagecodecs)": lambda name: Codec(
            name, "qoi", of_imagecodecs("qoi_decode"), of_imagecodecs("qoi_encode")
        ),
        "JPEG XL lossless (imagecodecs)": lambda name: Codec(
            name, "jxl", of_imagecodecs("jpegxl_decode"),
            of_imagecodecs("jpegxl_encode", lossless=True, effort=3, numthreads=1),
        ),
    }  # fmt: skip
    missing = []
    for name, make in optional.items():
        try:
            codecs.append(make(name))
        except (ImportError, RuntimeError, OSError, ValueError):
            missing.append(name)
    return codecs, missing


# -- measuring ---------------------------------------------------------------------------------------------------------


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    began = time.thread_time()
    made = function(*arguments)
    return time.thread_time() - began, made


def measure_set(images: list[Pixels], codecs: list[Codec], num_rounds: int, tick: Callable[[], object]) -> Facts:
    """Returns bits per pixel, encoded and decoded 10^6 pixels per second; sums over images of their medians."""
    files: dict[str, list[Any]] = {}
    facts: Facts = {codec.name: {} for codec in codecs}
    pixels = [each.shape[0] * each.shape[1] for each in images]
    mpix = sum(pixels) / 1e6
    for codec in codecs:
        if codec.encode is None:
            continue
        # Those that are slow are slow enough to be measured once.
        turns = num_rounds if codec.format.startswith("lossless") else 1
        timed = [[_timed(codec.encode, each) for _ in range(turns)] for each in images]
        made = files[codec.format] = [each[0][1] for each in timed]
        sizes = list(map(codec.size, made))
        facts[codec.name] = {
            "encode_mpix_s": mpix / sum(statistics.median(took for took, _ in each) for each in timed),
            "bits_per_pixel": statistics.mean(8 * size / count for size, count in zip(sizes, pixels, strict=True)),
            "vs_png": statistics.mean(size / len(png) for size, png in zip(sizes, files["png"], strict=True)),
        }
    calls = {codec.name: lambda number, codec=codec: codec.decode(files[codec.format][number]) for codec in codecs}
    took = in_turns_by_item(calls, len(images), num_rounds, tick)
    for name, each in took.items():
        facts[name]["decode_mpix_s"] = mpix / sum(each)
    return facts


def crop_share(mosaic: Pixels, num_rounds: int) -> float:
    """Returns the time of a crop of 512 by 512 over that of the whole mosaic; crops lie anywhere."""
    file, last = _ours(mosaic), np.subtract(mosaic.shape[:2], CROP)
    corners = np.random.default_rng(0).integers(0, last, (4 * num_rounds, 2), endpoint=True).tolist()
    decode(file)
    whole = statistics.median(_timed(decode, file)[0] for _ in corners)
    return statistics.median(_timed(partial(decode, file, box=(*each, CROP, CROP)))[0] for each in corners) / whole


def check(images: list[Pixels]) -> None:
    """Raises RuntimeError unless what is measured is lossless."""
    for pixels in images:
        wanted = pixels.transpose(2, 0, 1)
        if not all(np.array_equal(decode(_ours(pixels, compress=each)), wanted) for each in (True, False)):
            raise RuntimeError("ours is not lossless")
        if not np.array_equal(decode_l3(encode_l3(wanted)), wanted):
            raise RuntimeError("our implementation of L3's scheme is not lossless")


# -- on a GPU ----------------------------------------------------------------------------------------------------------


def measure_on_gpu(images: list[Pixels], num_rounds: int, console: Console) -> dict[str, float]:
    """Measures on the current CUDA device, against PNG that torchcodec decodes on every core; wall time, medians."""
    batch = [images[at % len(images)] for at in range(_BATCH)]
    files = [_ours(each, compress=False) for each in batch]
    pngs = [_by_pillow("PNG", compress_level=6)(each) for each in batch]
    mpix = sum(each.shape[0] * each.shape[1] for each in batch) / 1e6
    decoder = make_decoder("rgb", "png")
    with ThreadPoolExecutor() as threads:

        def by_png() -> torch.Tensor:
            pixels = torch.stack([each.contiguous() for each in threads.map(decoder, pngs)])
            return pixels.pin_memory().to("cuda", non_blocking=True)

        def by_ours() -> torch.Tensor:
            return torch.stack(decode_batch(files, device="cuda"))

        def seconds(side: Callable[[], object]) -> float:
            torch.cuda.synchronize()
            began = time.perf_counter()
            side()
            torch.cuda.synchronize()
            return time.perf_counter() - began

        if not torch.equal(by_png(), by_ours()):
            raise RuntimeError("the pixels differ")
        step = _training_step()
        sides = (by_png, by_ours, lambda: step(by_png()), lambda: step(by_ours()))
        took = rounds(console, "GPU", sides, num_rounds + 1, seconds)
    png_s, ours_s, train_png_s, train_ours_s = (
        statistics.median(took[side][1:]) for side in sides
    )  # the first warms up
    figures = (round(mpix / ours_s, 1), round(png_s / ours_s, 3), round(train_png_s / train_ours_s, 3))
    return dict(zip(GPU_KEYS, figures, strict=True))


def _training_step() -> Callable[[torch.Tensor], object]:
    """Returns a few convolutions, a label for each pixel."""
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, stride=2, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, stride=2, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(64, 19, 1), torch.nn.Upsample(scale_factor=4),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)

    def step(pixels: torch.Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            scores = layers(pixels.half() / 255)
            loss = torch.nn.functional.cross_entropy(scores.float(), pixels[:, 0].long() % 19)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Runs all codecs over all images."""
    torch.set_num_threads(1)
    sets = make_images(load)
    for images in sets.values():
        check(images)
    codecs, missing = make_codecs()
    with bar(console, "Rounds", len(sets) * (load.num_rounds + 1)) as progress:
        facts = {name: measure_set(images, codecs, load.num_rounds, progress.advance) for name, images in sets.items()}
    rows: list[dict[str, Any]] = [
        {"set": name, "codec": codec, **{key: round(value, 4) for key, value in found.items()}}
        for name, of_set in facts.items()
        for codec, found in of_set.items()
    ]
    rows += [{"set": name, "codec": codec, "missing": True} for name in sets for codec in missing]
    pngs = [codec.name for codec in codecs if codec.format == "png"]

    def rate(codec: str) -> float:
        best = {name: max(facts[name][png]["decode_mpix_s"] for png in pngs) for name in sets}
        return statistics.geometric_mean(facts[name][codec]["decode_mpix_s"] / best[name] for name in sets)

    return {
        "native": has_native_lossless(),
        "rounds": load.num_rounds,
        "rows": rows,
        "best_png": max(pngs, key=lambda codec: facts["photographs"][codec]["decode_mpix_s"]),
        "size_vs_png": round(facts["photographs"]["ours"]["vs_png"], 4),
        "size_pack_vs_png": round(facts["photographs"]["ours, pack"]["vs_png"], 4),
        "decode_vs_png": round(rate("ours"), 3),
        "decode_pack_vs_png": round(rate("ours, pack"), 3),
        "crop_vs_full": round(crop_share(sets["mosaics"][0], load.num_rounds), 4),
        "encode_mpix_s": round(min(facts[name]["ours"]["encode_mpix_s"] for name in sets), 2),
        **dict.fromkeys(GPU_KEYS),
        **(measure_on_gpu(sets["mosaics"], load.num_rounds, console) if torch.cuda.is_available() else {}),
    }


main = program("lossless", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
