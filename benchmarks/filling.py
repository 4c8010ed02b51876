"""How photographs get into place: into the bucket as objects, and as shards by the command that a user would type."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.bucket import put_all
from benchmarks.command import bar
from benchmarks.harness import run_command
from benchmarks.photos import CLASSES, PhotoFolder, make_photos
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import CorruptData, NotFound
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.stores import open_store

_LOG = logging.getLogger(__name__)


def photos_in(folder: Path | str, count: int, console: Console, *, seed: int = 0) -> PhotoFolder:
    """Makes photographs below a folder, with a progress bar, or finds those of an earlier run."""
    with bar(console, "Photographs", count) as progress:
        return make_photos(Path(folder), count=count, seed=seed, on_photo=progress.advance)


def put_objects(
    photos: PhotoFolder, url: str, options: Mapping[str, str], *, on_object: Callable[[], object] = lambda: None
) -> int:
    """Puts every photograph into the bucket as ``class/file.jpg``, unless it is there; returns how many were put."""
    files: dict[str, bytes | Path] = {f"{path.parent.name}/{path.name}": path for path in photos.paths()}
    return put_all(url, options, files, on_object=on_object)


def write_shards(photos: PhotoFolder, url: str, options: Mapping[str, str] | None = None) -> None:
    """Writes photographs as shards, each with its label and its number."""
    columns = {"image": "jpeg", "label": "int64", "number": "int64"}
    with ShardWriter(url, columns=columns, storage_options=dict(options or {})) as writer:
        for number, path in enumerate(photos.paths()):
            label = CLASSES.index(path.parent.name)
            writer.write({"image": path.read_bytes(), "label": label, "number": number})


def has_shards(photos: PhotoFolder, url: str, options: Mapping[str, str]) -> bool:
    """Returns whether an earlier run left a dataset of as many samples; deletes any other, so that it is made again."""
    return asyncio.run(_has_shards(photos.count, url, options))


async def _has_shards(num_samples: int, url: str, options: Mapping[str, str]) -> bool:
    async with open_store(url, **options) as store:
        try:
            if (await load_manifest(store)).num_samples == num_samples:
                return True
        except NotFound:
            return False
        except CorruptData as error:
            _LOG.warning("the dataset of an earlier run is made again: %s", error)
        for meta in [meta async for meta in store.list("")]:
            await store.delete(meta.key)
        return False


def ingest_command(photos: PhotoFolder, url: str, endpoint_url: str) -> list[str]:
    """Returns what a user types to turn an image folder into shards; credentials come from the environment."""
    return ["concurrent-loader", "ingest", "image-folder", str(photos.root), url, "--endpoint-url", endpoint_url]


def ingest(photos: PhotoFolder, url: str, options: Mapping[str, str]) -> None:
    """Runs that command; raises CommandError if it fails."""
    command = ingest_command(photos, url, options["endpoint_url"])
    # The command beside this interpreter, whether or not its environment is activated or the package installed.
    program = Path(sys.executable).with_name(command[0])
    start = [str(program)] if program.exists() else [sys.executable, "-m", "concurrent_loader.cli.app"]
    environment = {
        "AWS_ACCESS_KEY_ID": options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "AWS_DEFAULT_REGION": options.get("region", "us-east-1"),
    }
    run_command([*start, *command[1:]], env=environment)
