"""The peers' bucket: images as objects, and in every peer's format."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from benchmarks.access import Requests
from benchmarks.bucket import botocore_client, put_all
from benchmarks.peers.catalog import Peer
from benchmarks.peers.job import STORE_OPTIONS, Job
from concurrent_loader.storage.testing import LocalS3, http_faults

BUCKET = "peers"
_SIGNED_S = 24 * 3600


def led_to(job: Job, options: Mapping[str, str], *, bucket: str = BUCKET) -> Job:
    """Returns the job, with the way to a bucket from the options of a store."""
    return structs.replace(job, bucket=bucket, **{name: options[name] for name in STORE_OPTIONS if name in options})


@contextlib.contextmanager
def counted(server: LocalS3) -> Iterator[tuple[LocalS3, list[Requests]]]:
    """Puts a proxy that counts what is read before a server; the list has the sum once the block has ended.

    A peer may write, too: LitData keeps its index of raw objects in the bucket.
    """
    found: list[Requests] = []
    with http_faults(server) as proxy:
        yield server.through(proxy), found
        reads = [one for one in proxy.exchanges if one.request.method in ("GET", "HEAD")]
        found.append(Requests.on_the_wire(reads))


def put_objects(url: str, options: Mapping[str, str], images: Sequence[Path]) -> None:
    """Puts one object per image below a URL, named by its number."""
    put_all(url, options, {f"{number:07d}.jpg": path for number, path in enumerate(images)})


def put_files(server: LocalS3, prefix: str, folder: Path) -> list[str]:
    """Moves all files of a folder below a prefix; returns their keys."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path for path in found}
    if files:
        put_all(f"s3://{BUCKET}/{prefix}", server.storage_options(), files)
    shutil.rmtree(folder)
    return [f"{prefix}/{name}" for name in files]


def signed_urls(server: LocalS3, keys: Sequence[str]) -> list[str]:
    """Returns URLs that anybody can read by, for a peer that has no S3 client of its own."""
    client = botocore_client(server.storage_options())
    return [
        client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=_SIGNED_S)
        for key in keys
    ]


def prefix_of(peer: Peer) -> str:
    """Returns where a peer's images lie in the bucket; its own format below its own name."""
    return "objects" if peer.place == "objects" and not peer.writes_beside else peer.name
