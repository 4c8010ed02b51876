"""What a processor core decodes: ``python -m benchmarks.decode [--json FILE] [--quick]``.

Real photographs, cut from those that scikit-image and scikit-learn carry, in three sets: 500×375 of about 110 KB and of
about 35 KB, and 2000×1500. Decoding alone; and decoding, random resized crop to 224×224 and flip, every recipe with the
same boxes. One thread each, processor time, image by image in turns, so that whatever else the machine does befalls
all alike; the two-thread figure alone is wall time. simplejpeg with OpenCV takes part where both are installed, and is
said to be missing where not.
"""

from __future__ import annotations

import importlib.util
import io
import random
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
import torchvision.io  # noqa: F401 - registers the operators
from PIL import Image
from rich.console import Console
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as v2

from benchmarks.command import bar, in_turns_by_item, program
from benchmarks.photos import CLASSES, cut, open_photograph, saved
from concurrent_loader.augment import RandomResizedCrop, uniforms
from concurrent_loader.decode import Decoder, available_backends, has_native_crop, make_crop_decoder, make_decoder
from concurrent_loader.decode.crop import Box, CropDecoder

SIDE = 224


class PhotoSet(NamedTuple):
    """Images of one size and about one length, and the boxes that are cut out of them."""

    name: str
    jpegs: list[bytes]
    boxes: list[Box]


class Load(NamedTuple):
    """How much is measured."""

    num_images: int
    num_large: int
    num_rounds: int


FULL = Load(60, 16, 7)
QUICK = Load(6, 2, 2)

Recipe = Callable[[bytes, Box], object]


def make_sets(load: Load) -> list[PhotoSet]:
    """Cuts and encodes the three sets, the same every time."""
    crop = RandomResizedCrop(SIDE)
    made = []
    for name, width, height, num_bytes, count in (
        ("110kb", 500, 375, 110_000, load.num_images),
        ("35kb", 500, 375, 35_000, load.num_images),
        ("large", 2000, 1500, None, load.num_large),
    ):
        photographs = [open_photograph(CLASSES[number % len(CLASSES)]) for number in range(count)]
        shape = width, height, 0.6, Image.Resampling.LANCZOS
        cuts = [cut(each, random.Random(number), *shape) for number, each in enumerate(photographs)]
        jpegs = [_encoded_near(each, num_bytes) if num_bytes else saved(each, "JPEG", quality=90) for each in cuts]
        draws = uniforms(0, 0, np.arange(count), crop.num_draws).tolist()
        made.append(PhotoSet(name, jpegs, [crop.box(height, width, row) for row in draws]))
    return made


def _encoded_near(image: Image.Image, num_bytes: int) -> bytes:
    """Encodes at the lowest quality that gives at least a length."""
    qualities = range(20, 98)
    least = bisect_left(qualities, num_bytes, key=lambda quality: len(saved(image, "JPEG", quality=quality)))
    return saved(image, "JPEG", quality=20 + least)


def _by_torchvision(jpeg: bytes) -> torch.Tensor:
    # The operator under torchvision.io.decode_jpeg, which warns of its end in every call.
    image: torch.Tensor = torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), 3, False)
    return image


def _cropped(image: Any, box: Box) -> Any:
    part = v2.resized_crop(
        image, box.top, box.left, box.height, box.width, [SIDE, SIDE], InterpolationMode.BILINEAR, antialias=True
    )
    return v2.horizontal_flip(part) if box.flip else part


def _pil(jpeg: bytes, box: Box) -> object:
    with Image.open(io.BytesIO(jpeg)) as image:
        return v2.pil_to_tensor(_cropped(image.convert("RGB"), box))


def _with(crop: CropDecoder) -> Recipe:
    out = np.empty((3, SIDE, SIDE), np.uint8)

    def ours(jpeg: bytes, box: Box) -> object:
        crop(jpeg, lambda height, width: box, out)
        return out

    return ours


def usable_recipes() -> dict[str, Recipe]:
    """Returns by name what can be used here to decode, crop, resize and flip, and what only decodes the whole image."""
    found: dict[str, Recipe] = {
        "PIL + v2": _pil,
        "torchvision.io + v2": lambda jpeg, box: _cropped(_by_torchvision(jpeg), box),
        "ours, library": _with(make_crop_decoder("jpeg", native=False)),
    }
    if has_native_crop():
        found["ours, native"] = _with(make_crop_decoder("jpeg", native=True))
    if "simplejpeg + cv2" not in missing_recipes():
        found["simplejpeg + cv2"] = _simplejpeg()
    return found | {
        f"decode: {name}": _whole(make_decoder("rgb", "jpeg", backend=name)) for name in available_backends()
    }


def _simplejpeg() -> Recipe:
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)

    def simplejpeg_and_cv2(jpeg: bytes, box: Box) -> object:
        height, width = simplejpeg.decode_jpeg_header(jpeg)[:2]
        # As small as leaves the crop its size.
        least = {"min_height": SIDE * height / box.height, "min_width": SIDE * width / box.width}
        image = simplejpeg.decode_jpeg(jpeg, min_factor=2, **{name: int(least[name]) for name in least})
        shrunk = image.shape[1] / width
        top, left = round(box.top * shrunk), round(box.left * shrunk)
        bottom, right = top + max(1, round(box.height * shrunk)), left + max(1, round(box.width * shrunk))
        resized = cv2.resize(image[top:bottom, left:right], (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        flipped = resized[:, ::-1] if box.flip else resized
        return np.ascontiguousarray(flipped.transpose(2, 0, 1))

    return simplejpeg_and_cv2


def missing_recipes() -> list[str]:
    """Peers that are not installed here."""
    wanted = {"simplejpeg + cv2": ("simplejpeg", "cv2"), "decode: simplejpeg": ("simplejpeg",)}
    return [name for name, needs in wanted.items() if not all(map(importlib.util.find_spec, needs))]


def _whole(decoder: Decoder) -> Recipe:
    return lambda jpeg, box: decoder(jpeg)


def measure(
    photos: PhotoSet, recipes: dict[str, Recipe], num_rounds: int, tick: Callable[[], object]
) -> dict[str, float]:
    """Returns the processor seconds of one image by recipe: the sum over images of each one's median."""
    images = list(zip(photos.jpegs, photos.boxes, strict=True))
    calls = {name: lambda number, recipe=recipe: recipe(*images[number]) for name, recipe in recipes.items()}
    took = in_turns_by_item(calls, len(images), num_rounds, tick)
    return {name: statistics.mean(each) for name, each in took.items()}


def scaling(photos: PhotoSet, num_rounds: int) -> float:
    """Divides the images per second of two threads by those of one, by our fastest recipe; median of the turns."""

    def work() -> None:
        crop = _with(make_crop_decoder("jpeg"))
        for jpeg, box in zip(photos.jpegs * 4, photos.boxes * 4, strict=True):
            crop(jpeg, box)

    def seconds(num_threads: int) -> float:
        began = time.perf_counter()
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(work) for _ in range(num_threads)]:
                done.result()
        return time.perf_counter() - began

    return statistics.median(2 * seconds(1) / seconds(2) for _ in range(num_rounds))


def mean_error(photos: PhotoSet) -> float:
    """Returns the mean difference of ours from the image decoded whole, cropped and resized, in gray levels."""
    ours = _with(make_crop_decoder("jpeg"))
    errors = []
    for jpeg, box in zip(photos.jpegs, photos.boxes, strict=True):
        wanted = _cropped(_by_torchvision(jpeg).float(), box)
        errors.append(float((torch.from_numpy(np.asarray(ours(jpeg, box))).float() - wanted).abs().mean()))
    return statistics.mean(errors)


def run_benchmark(load: Load, console: Console) -> dict[str, object]:
    """Runs all recipes over all sets."""
    torch.set_num_threads(1)
    sets = make_sets(load)
    recipes = usable_recipes()
    rows: list[dict[str, object]] = []
    ratios: dict[str, float] = {}
    best = "ours, native" if has_native_crop() else "ours, library"
    with bar(console, "Rounds", len(sets) * (load.num_rounds + 1)) as progress:
        for photos in sets:
            cpu_s = measure(photos, recipes, load.num_rounds, progress.advance)
            ratios[f"ratio_{photos.name}"] = round(cpu_s["torchvision.io + v2"] / cpu_s[best], 3)
            rates: dict[str, Any] = {name: (round(1 / s, 1), round(1000 * s, 4)) for name, s in cpu_s.items()}
            rates |= dict.fromkeys(missing_recipes(), (None, None))
            rows += [
                {"set": photos.name, "recipe": name, "images_s_core": images_s, "cpu_s_per_1000": per_1000_s}
                for name, (images_s, per_1000_s) in rates.items()
            ]
    return {
        "native": has_native_crop(),
        "mean_bytes": {photos.name: round(statistics.mean(map(len, photos.jpegs))) for photos in sets},
        "rounds": load.num_rounds,
        "rows": rows,
        **ratios,
        "two_thread_scaling": round(scaling(sets[0], load.num_rounds), 3),
        "mean_error": round(max(mean_error(photos) for photos in sets), 3),
    }


main = program("decode", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
