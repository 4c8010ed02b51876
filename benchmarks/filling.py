"""How photographs get into the bucket: as raw objects, and as unified shards by the command that a user would type."""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness import run_command
from benchmarks.photos import PhotoFolder
from concurrent_loader.storage.errors import CorruptData, NotFound
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.stores import open_store

_LOG = logging.getLogger(__name__)
_PUTS_IN_FLIGHT = 32


def put_objects(
    photos: PhotoFolder, url: str, options: Mapping[str, str], *, on_object: Callable[[], object] | None = None
) -> int:
    """Puts every photograph into the bucket as an object of its own, unless it is there with the same size."""
    return asyncio.run(_put_objects(photos, url, options, on_object or _nothing))


async def _put_objects(
    photos: PhotoFolder, url: str, options: Mapping[str, str], on_object: Callable[[], object]
) -> int:
    async with open_store(url, **options) as store:
        present = {meta.key: meta.size async for meta in store.list("")}
        missing = {
            key: path
            for path in photos.paths()
            if present.get(key := f"{path.parent.name}/{path.name}") != path.stat().st_size
        }
        for _ in range(photos.count - len(missing)):
            on_object()
        slots = asyncio.Semaphore(_PUTS_IN_FLIGHT)

        async def put(key: str, path: Path) -> None:
            async with slots:
                await store.put(key, await asyncio.to_thread(path.read_bytes))
            on_object()

        async with asyncio.TaskGroup() as group:
            for key, path in missing.items():
                group.create_task(put(key, path))
        return len(missing)


def has_shards(photos: PhotoFolder, url: str, options: Mapping[str, str]) -> bool:
    """Whether a dataset of as many samples is there, from an earlier run.

    A dataset that is not this one (of other photographs, of an older format, damaged) is deleted, so that it can be
    made again; the place is the demo's own.
    """
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
    """What a user types to turn an image folder into shards; credentials come from the environment."""
    return ["concurrent-loader", "ingest", "image-folder", str(photos.root), url, "--endpoint-url", endpoint_url]


def ingest(photos: PhotoFolder, url: str, options: Mapping[str, str]) -> None:
    """Runs that command; its progress bar and summary go to the terminal."""
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


def shown(command: list[str]) -> str:
    """A command as one would type it."""
    return shlex.join(command)


def _nothing() -> None: ...
