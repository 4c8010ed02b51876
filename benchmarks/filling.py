"""How photographs get into place: into the bucket as objects, and as shards."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.bucket import put_all
from benchmarks.command import bar
from benchmarks.photos import CLASSES, PhotoFolder, make_photos
from concurrent_loader.storage import ShardWriter


def photos_in(folder: Path | str, count: int, console: Console) -> PhotoFolder:
    """Makes photographs below a folder, with a progress bar, or finds those of an earlier run."""
    with bar(console, "Photographs", count) as progress:
        return make_photos(Path(folder), count=count, on_photo=progress.advance)


def put_objects(photos: PhotoFolder, url: str, options: Mapping[str, str]) -> None:
    """Puts every photograph into the bucket as ``class/file.jpg``, unless it is there."""
    put_all(url, options, {f"{path.parent.name}/{path.name}": path for path in photos.paths()})


def write_shards(photos: PhotoFolder, url: str, options: Mapping[str, str] | None = None) -> None:
    """Writes photographs as shards, in random order, each with its label and its number among the sorted paths."""
    columns, paths = {"image": "jpeg", "label": "int64", "number": "int64"}, photos.paths()
    with ShardWriter(url, columns=columns, overwrite=True, storage_options=dict(options or {})) as writer:
        for number in random.Random(0).sample(range(len(paths)), len(paths)):
            path = paths[number]
            label = CLASSES.index(path.parent.name)
            writer.write({"image": path.read_bytes(), "label": label, "number": number})
