"""A bucket for one demo or benchmark: a local S3 server, behind the latency of a real one, and what is put into it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import botocore.session
import obstore.store
import psutil
from botocore.config import Config
from rich.console import Console

from benchmarks.command import bar
from benchmarks.photos import CLASSES, PhotoFolder, make_photos
from concurrent_loader.storage import ShardWriter, open_store
from concurrent_loader.storage.testing import LocalS3, ToolUnavailable, local_s3, measure_latency, toxiproxy

BANDWIDTH_MB_S = 90  # of one connection to S3, as AWS's guide says
Item = TypeVar("Item")
_LOG = logging.getLogger(__name__)
_NAME = "demo"
_NUM_PROBES = 31
_JITTER_PART = 3  # latency is uniform in median ± a third of it
_PUTS_IN_FLIGHT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where a bucket is reached, directly and as if it were far away."""

    name: str
    direct: Mapping[str, str] = field(repr=False)  # options of a store, straight to the server; has the secret key
    remote: Mapping[str, str] = field(repr=False)  # options through the latency; ``direct`` where none is applied
    server: str  # in words
    latency: str  # applied and measured, in words
    latency_ms: float  # measured: median to the first byte of a small request over a warm connection
    latency_applied: bool
    processes: tuple[psutil.Process, ...] = ()  # the server's and the proxy's

    def server_cpu_s(self) -> float:
        """Returns the processor seconds of server and proxy so far; 0 for an external server."""
        times = [process.cpu_times() for process in self.processes]
        return sum(one.user + one.system for one in times)


@contextlib.contextmanager
def far_away(server: LocalS3, latency_ms: int) -> Iterator[tuple[LocalS3, float]]:
    """Puts a latency ± a third and 90 MB/s per connection before a server; yields it and the measured ms."""
    jitter_ms = latency_ms // _JITTER_PART
    with toxiproxy(server, latency_ms=latency_ms, jitter_ms=jitter_ms, bandwidth_mb_s=BANDWIDTH_MB_S) as proxy:
        far = server.through(proxy)
        yield far, round(measure_latency(far.endpoint_url, num_requests=_NUM_PROBES), 2)


@contextlib.contextmanager
def open_bucket(data_dir: Path, *, latency_ms: int) -> Iterator[Bucket]:
    """Starts a server with a bucket, at ``latency_ms`` (0 for none); the next run finds the objects in ``data_dir``."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(local_s3(data_dir=data_dir))
        server.make_bucket(_NAME)
        far, applied = server, f"no latency applied (--latency {latency_ms})"
        if latency_ms:
            try:
                far, _ = stack.enter_context(far_away(server, latency_ms))
                jitter_ms = latency_ms // _JITTER_PART
                applied = f"{latency_ms} ± {jitter_ms} ms and {BANDWIDTH_MB_S} MB/s a connection by toxiproxy"
            except ToolUnavailable as error:
                _LOG.warning("toxiproxy is not available: %s", error)
                applied = "no latency applied (toxiproxy is not available)"
        measured_ms = round(measure_latency(far.endpoint_url, num_requests=_NUM_PROBES), 2)
        names = {"minio": "MinIO", "moto": "moto (slow: figures mean nothing)", "external": "the user's own server"}
        yield Bucket(
            name=_NAME,
            direct=server.storage_options(),
            remote=far.storage_options(),
            server=names[server.kind],
            latency=f"{applied}; measured: {measured_ms:.1f} ms to the first byte (median of {_NUM_PROBES})",
            latency_ms=measured_ms,
            latency_applied=far is not server,
            processes=tuple(psutil.Process().children(recursive=True)),
        )


async def at_once(run: Callable[[Item], Awaitable[object]], items: Iterable[Item], in_flight: int) -> None:
    """Runs a coroutine for every item, so many of them at once."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await run(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())


def put_all(url: str, options: Mapping[str, str], values: Mapping[str, bytes] | Mapping[str, Path]) -> None:
    """Puts values or files below a URL, unless they are there with the same size."""

    async def run() -> None:
        async with open_store(url, **options) as store:
            present = {meta.key: meta.size async for meta in store.list("")}

            async def put(key: str) -> None:
                value = values[key]
                size = len(value) if isinstance(value, bytes) else value.stat().st_size
                if present.get(key) != size:
                    data = value if isinstance(value, bytes) else await asyncio.to_thread(value.read_bytes)
                    await store.put(key, data)

            await at_once(put, values, _PUTS_IN_FLIGHT)

    asyncio.run(run())


def botocore_client(options: Mapping[str, str], **config: Any) -> Any:
    """Makes the client that boto3 is made of, from the options of a store."""
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=options["endpoint_url"],
        region_name=options.get("region", "us-east-1"),
        aws_access_key_id=options["access_key_id"],
        aws_secret_access_key=options["secret_access_key"],
        config=Config(s3={"addressing_style": "path"}, **config),
    )


def obstore_client(bucket: str, options: Mapping[str, Any]) -> obstore.store.S3Store:
    """Makes obstore's client from the options of a store."""
    http = options["endpoint_url"].startswith("http://")
    return obstore.store.S3Store(
        bucket,
        endpoint=options["endpoint_url"],
        region=options.get("region", "us-east-1"),
        access_key_id=options["access_key_id"],
        secret_access_key=options["secret_access_key"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": http, "allow_invalid_certificates": not options.get("verify_tls", True)},
    )


def photos_in(folder: Path | str, count: int, console: Console) -> PhotoFolder:
    """Makes photographs below a folder, with a progress bar, or finds those of an earlier run."""
    with bar(console, "Photographs", count) as progress:
        return make_photos(Path(folder), count=count, on_photo=progress.advance)


def write_shards(photos: PhotoFolder, url: str, options: Mapping[str, str] | None = None) -> None:
    """Writes photographs as shards, in random order, each with its label and its number among the sorted paths."""
    columns, paths = {"image": "jpeg", "label": "int64", "number": "int64"}, photos.paths()
    with ShardWriter(url, columns=columns, overwrite=True, storage_options=dict(options or {})) as writer:
        for number in random.Random(0).sample(range(len(paths)), len(paths)):
            path = paths[number]
            label = CLASSES.index(path.parent.name)
            writer.write({"image": path.read_bytes(), "label": label, "number": number})
