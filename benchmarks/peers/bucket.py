"""The peers' bucket: images as objects, and in every peer's format, behind one latency after another."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import botocore.session
from botocore.config import Config
from msgspec import structs

from benchmarks.bucket_requests import Requests
from benchmarks.peers.catalog import Peer
from benchmarks.peers.messages import Job
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.testing import LocalS3, http_faults, measure_latency, toxiproxy

BUCKET = "peers"
_JITTER_PART = 3
_BANDWIDTH_MB_S = 90
_PUTS_IN_FLIGHT = 16
_SIGNED_S = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to the server."""

    endpoint_url: str  # where it is reached
    options: Mapping[str, str] = field(repr=False)  # has the secret key
    first_byte_ms: float | None = None  # measured; None where nobody did

    def lead(self, job: Job) -> Job:
        """The job, going this way."""
        return structs.replace(
            job,
            endpoint_url=self.endpoint_url,
            access_key_id=self.options["access_key_id"],
            secret_access_key=self.options["secret_access_key"],
            region=self.options.get("region", "us-east-1"),
            bucket=BUCKET,
        )


@contextlib.contextmanager
def far_away(server: LocalS3, latency_ms: int) -> Iterator[Way]:
    """The server behind a latency, with 90 MB/s a connection."""
    with toxiproxy(
        server, latency_ms=latency_ms, jitter_ms=latency_ms // _JITTER_PART, bandwidth_mb_s=_BANDWIDTH_MB_S
    ) as proxy:
        far = server.through(proxy)
        measured = round(measure_latency(far.endpoint_url, num_requests=31), 2)
        yield Way(endpoint_url=far.endpoint_url, options=far.storage_options(), first_byte_ms=measured)


@contextlib.contextmanager
def counted(server: LocalS3) -> Iterator[tuple[Way, list[Requests]]]:
    """The server behind a proxy that counts what is read; the list has the sum once the block has ended.

    A peer may write, too: LitData keeps its index of raw objects in the bucket.
    """
    found: list[Requests] = []
    with http_faults(server) as proxy:
        far = server.through(proxy)
        yield Way(endpoint_url=far.endpoint_url, options=far.storage_options()), found
        reads = [one for one in proxy.exchanges if one.request.method in ("GET", "HEAD")]
        found.append(Requests.on_the_wire(reads))


def put_objects(server: LocalS3, prefix: str, images: Sequence[Path]) -> None:
    """One object per image below a prefix, named by its number."""
    asyncio.run(_put(server, prefix, {f"{number:07d}.jpg": path for number, path in enumerate(images)}))


def put_files(server: LocalS3, prefix: str, folder: Path) -> list[str]:
    """All files of a folder below a prefix; returns their keys."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    asyncio.run(_put(server, prefix, files))
    shutil.rmtree(folder)
    return [f"{prefix}/{name}" for name in files]


async def _put(server: LocalS3, prefix: str, files: Mapping[str, Path]) -> None:
    async with open_store(f"s3://{BUCKET}/{prefix}", **server.storage_options()) as store:
        slots = asyncio.Semaphore(_PUTS_IN_FLIGHT)

        async def put(name: str, path: Path) -> None:
            async with slots:
                await store.put(name, await asyncio.to_thread(path.read_bytes))

        async with asyncio.TaskGroup() as group:
            for name, path in files.items():
                group.create_task(put(name, path))


def signed_urls(way: Way, keys: Sequence[str]) -> list[str]:
    """URLs that anybody can read by, for a peer that has no S3 client of its own."""
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=way.endpoint_url,
        region_name=way.options.get("region", "us-east-1"),
        aws_access_key_id=way.options["access_key_id"],
        aws_secret_access_key=way.options["secret_access_key"],
        config=Config(s3={"addressing_style": "path"}),
    )
    return [
        client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=_SIGNED_S)
        for key in keys
    ]


def prefix_of(peer: Peer) -> str:
    """Where a peer's images lie in the bucket; its own format below its own name."""
    return "objects" if peer.place == "objects" and not peer.writes_beside else peer.name
