"""The dataset before it has a bucket: JPEG photographs on the local drive, one folder a class.

They are cut from the ten colour photographs that the wheels of scikit-image and scikit-learn carry, so that sizes,
entropy and decoding cost are those of real images and nothing has to be downloaded. An image's class is the
photograph that it was cut from. The same count gives the same images (byte for byte with the same Pillow),
whatever the number of threads, because every image has a random stream of its own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

from PIL import Image

MIN_BYTES = 40_000
MAX_BYTES = 120_000

# Class name → package and file. The gray and the synthetic images of scikit-image are left out.
_SOURCES = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "dahlia": ("sklearn", "datasets/images/flower.jpg"),
    "galaxies": ("skimage", "data/hubble_deep_field.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "pavilion": ("sklearn", "datasets/images/china.jpg"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "tissue": ("skimage", "data/ihc.png"),
}
CLASSES = tuple(sorted(_SOURCES))

_RECIPE_VERSION = 1  # counts up whenever the same count gives other images
_MAX_DRAWS = 200
_FACTS = "photos.json"
Images = Generator[tuple[str, bytes], None, None]  # name below the folder, and file


@dataclass(frozen=True, slots=True)
class PhotoFolder:
    """A finished folder of photographs."""

    root: Path  # one sub-folder a class, nothing else in it
    count: int  # number of images
    num_bytes: int  # of all of them together
    digest: str  # SHA-256 over every name, size and content, in order of the names

    @property
    def mean_bytes(self) -> float:
        """Average size of an image."""
        return self.num_bytes / self.count

    def paths(self) -> list[Path]:
        """Returns all images, sorted by class and name."""
        return sorted(self.root.glob("*/*.jpg"))


def make_photos(parent: Path, *, count: int, on_photo: Callable[[], object] = lambda: None) -> PhotoFolder:
    """Makes a folder of photographs below ``parent``, or finds the finished one of an earlier run."""
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")

    def drawn() -> Images:
        with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="photos") as pool:
            drawing: Any = pool.map(_draw, range(count))
            with closing(drawing):  # an interrupted run draws no more
                for index, data in enumerate(drawing):
                    yield f"{CLASSES[index % len(CLASSES)]}/{index:06d}.jpg", data

    return _made(parent / f"photos-{count}-v{_RECIPE_VERSION}", drawn(), count, on_photo)


def replicate_photos(photos: PhotoFolder, *, min_bytes: int) -> PhotoFolder:
    """Repeats the photographs until they are ``min_bytes`` together, each copy with a comment of its own.

    The comment (a JPEG COM segment) makes every copy a different object, so that neither a content-addressed store
    nor a cache can hold two copies as one; the pixels are the same.
    """
    num_copies = max(1, -(-min_bytes // photos.num_bytes))
    final = photos.root.parent.with_name(f"{photos.root.parent.name}-x{num_copies}")

    def copies() -> Images:
        for copy in range(num_copies):
            for path in photos.paths():
                yield f"{path.parent.name}/{copy:03d}-{path.name}", _comment(path.read_bytes(), f"copy {copy}")

    return _made(final, copies(), photos.count * num_copies)


def pad_photos(photos: PhotoFolder, *, count: int, num_bytes: int) -> PhotoFolder:
    """Repeats the photographs until there are ``count``, and appends noise to each up to ``num_bytes``.

    What follows the end of a JPEG is ignored by decoders. A photograph that is larger already stays as it is.
    """
    final = photos.root.parent.with_name(f"{photos.root.parent.name}-{count}-of-{num_bytes}")

    def padded() -> Images:
        for number, path in zip(range(count), cycle(photos.paths()), strict=False):
            data = _comment(path.read_bytes(), f"copy {number}")
            noise = random.Random(number).randbytes(max(0, num_bytes - len(data)))
            yield f"{path.parent.name}/{number:06d}.jpg", data + noise

    return _made(final, padded(), count)


@cache
def open_photograph(name: str) -> Image.Image:
    """Returns one of the photographs that everything is cut from, in full size, RGB; ``name`` is one of `CLASSES`."""
    package, file = _SOURCES[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the photographs come with {package}: pip install '.[bench]' in the clone")
    with Image.open(Path(spec.origin).parent / file) as image:
        return image.convert("RGB")


def _draw(index: int) -> bytes:
    """Cuts an image of about 500×375, sometimes upright; draws again until its size is that of a usual photograph."""
    name, rng = CLASSES[index % len(CLASSES)], random.Random(f"{_RECIPE_VERSION}-0-{index}")
    for _ in range(_MAX_DRAWS):
        long_side = round(500 * rng.uniform(0.9, 1.15))
        short_side = round(long_side * rng.uniform(0.68, 0.8))
        width, height = (long_side, short_side) if rng.random() < 0.8 else (short_side, long_side)
        data = saved(cut(open_photograph(name), rng, width, height, 0.55), "JPEG", quality=rng.randint(85, 95))
        if MIN_BYTES <= len(data) <= MAX_BYTES:
            return data
    raise RuntimeError(f"no cut of {name} had {MIN_BYTES} to {MAX_BYTES} bytes in {_MAX_DRAWS} draws")


def cut(
    photograph: Image.Image, rng: random.Random, width: int, height: int, least: float,
    filtered: Image.Resampling = Image.Resampling.BICUBIC,
) -> Image.Image:  # fmt: skip
    """Returns a random box of the photograph, at least so large a part of what fits, scaled to the wanted size."""
    scale = min(photograph.width / width, photograph.height / height) * rng.uniform(least, 1.0)
    box_width, box_height = width * scale, height * scale
    left = rng.uniform(0, photograph.width - box_width)
    top = rng.uniform(0, photograph.height - box_height)
    box = (left, top, left + box_width, top + box_height)
    return photograph.resize((width, height), filtered, box=box)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Returns the image as a file."""
    image.save(buffer := io.BytesIO(), kind, **options)
    return buffer.getvalue()


def _comment(jpeg: bytes, text: str) -> bytes:
    segment = text.encode("ascii")
    return jpeg[:2] + b"\xff\xfe" + struct.pack(">H", len(segment) + 2) + segment + jpeg[2:]


def _made(final: Path, images: Images, count: int, on_photo: Callable[[], object] = lambda: None) -> PhotoFolder:
    """Finds the folder, or writes the images into a temporary one and renames it: half a dataset is never found."""
    found = _finished(final, count=count)
    if found is not None:
        return found
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        for name in CLASSES[:count]:
            (temporary / "images" / name).mkdir(parents=True)
        num_bytes, digests = 0, {}
        for name, data in images:
            (temporary / "images" / name).write_bytes(data)
            num_bytes += len(data)
            digests[name] = hashlib.sha256(data).digest()
            on_photo()
        digest = hashlib.sha256(b"".join(name.encode() + digests[name] for name in sorted(digests))).hexdigest()
        facts = {"version": _RECIPE_VERSION, "count": count, "num_bytes": num_bytes, "digest": digest}
        (temporary / _FACTS).write_text(json.dumps(facts))
        temporary.chmod(0o755)  # mkdtemp makes 0700
        shutil.rmtree(final, ignore_errors=True)  # of an older recipe, or damaged
        temporary.rename(final)
    except BaseException:
        images.close()
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return PhotoFolder(final / "images", count, num_bytes, digest)


def _finished(final: Path, *, count: int) -> PhotoFolder | None:
    """Returns the folder, if it says that it is what is wanted and still holds that many bytes."""
    try:
        facts = json.loads((final / _FACTS).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    found = PhotoFolder(final / "images", count, facts["num_bytes"], facts["digest"])
    sizes = [path.stat().st_size for path in found.paths()]
    there = (facts["version"], facts["count"], len(sizes), sum(sizes))
    return found if there == (_RECIPE_VERSION, count, count, found.num_bytes) else None
