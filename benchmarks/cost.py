"""GETs, bytes and dollars of a run at list prices, ours measured, others' computed.

    python -m benchmarks.cost [--json FILE] [--quick] [--samples N] [--sample-bytes SIZE] [--epochs N] [--peers FILE]

Ours: the real loader reads a dataset of noise with samples of the size asked for from a local S3 server, through a
proxy that counts every request and byte on the wire; two epochs, as shards and as one object per sample, without a
cache and with one that holds everything. The counts are scaled to the number of samples asked for (by default
ImageNet's: 1,281,167 of 110 KB, 90 epochs). Requests are not hedged here, which would add 5 % of them at most.

Others: by their documentation, at the least; see `benchmarks.access.computed`. With ``--peers`` and the JSON file of
the benchmark that runs them, what they were seen to ask for is added, scaled likewise.

One node reads; several with caches of their own and groups to match ask for about the same in all (see
`benchmarks.scale`), without them each for its part again. Prices are in `benchmarks.access`, with their day and their
sources: **check them**. Storage is not counted, nor is the drive that a cache needs.

JSON: ``workload`` (``num_samples, sample_bytes, num_epochs``); ``measured``, what was counted (``system, num_samples,
opening, first_epoch, later_epoch``, each of these three ``gets, heads, lists, bytes``); ``rows`` (``system, kind``:
measured or computed, ``note, opening, first_epoch, later_epoch, run``, the same four numbers each, and ``usd``: store →
``first_epoch``, opening included, ``later_epoch, run``); ``prices_as_of``, ``prices``, ``chunk_sizes``, ``server``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import access
from benchmarks.bucket import put_all
from benchmarks.command import bar, program
from benchmarks.synthetic import noise, write_noise
from concurrent_loader import ConcurrentDataLoader, ObjectDataset, ShardDataset
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.sizes import parse_size
from concurrent_loader.storage.testing import HttpFaults, LocalS3, http_faults, local_s3

_BATCH = 64
_OPENERS: dict[str, Callable[..., ShardDataset | ObjectDataset]] = {
    "shards": ShardDataset,
    "objects": partial(ObjectDataset, column="data", column_type="bytes"),
}
_SYSTEMS = tuple(product(_OPENERS, ("no cache", "cache")))


@dataclass(frozen=True, slots=True)
class Load:
    """What is priced, and how much of it is really read."""

    samples: int = 1_281_167  # of the dataset: ImageNet's
    sample_bytes: str = "110KB"
    epochs: int = 90
    peers: str = ""  # file with the figures of `benchmarks.peers`, to be counted as well
    num_shards: int = 32  # full ones, approximately
    most_samples: int = 100_000  # in shards, beyond one full shard
    num_objects: int = 1_000


FULL = Load()
QUICK = Load(num_shards=2, most_samples=1_000, num_objects=32)


def measure(
    load: Load, sample_bytes: int, server: LocalS3, folder: Path, *, on_side: Callable[[], object]
) -> list[access.Measured]:
    """Reads in every way from a server with nothing in it yet, and counts on the wire."""
    bucket, options = server.make_bucket("cost"), server.storage_options()
    # A whole number of samples that fill a shard scales without a remainder.
    one = write_noise(str(folder / "one"), num_samples=CHUNK_BYTES // sample_bytes + 1, sample_bytes=sample_bytes)
    per_shard = one.shards[0].num_samples
    num_samples = per_shard * max(1, min(load.num_shards, load.most_samples // per_shard))
    write_noise(f"{bucket}/shards", num_samples=num_samples, sample_bytes=sample_bytes, storage_options=options)
    values = {f"{number:08d}": noise(number, sample_bytes) for number in range(load.num_objects)}
    put_all(f"{bucket}/objects", options, values)
    found = []
    for layout, cache in _SYSTEMS:
        with http_faults(server) as proxy:
            far = server.through(proxy).storage_options()
            cache_dir = folder / f"cache-{layout}" if cache == "cache" else None
            dataset = _OPENERS[layout](f"{bucket}/{layout}", storage_options=far, cache_dir=cache_dir, hedge=None)
            with dataset:
                counted = [_counted(proxy)]
                loader = ConcurrentDataLoader(dataset, _BATCH, shuffle=True)
                for _ in range(2):
                    if sum(len(batch["data"]) for batch in loader) != len(dataset):
                        raise AssertionError("an epoch did not deliver every sample once")
                    counted.append(_counted(proxy))
                found.append(access.Measured(f"ours, {layout}, {cache}", len(dataset), *counted))
        on_side()
    return found


def _counted(proxy: HttpFaults) -> access.Requests:
    requests = access.Requests.on_the_wire(proxy.exchanges)
    proxy.forget()
    return requests


def priced(system: access.Access, num_epochs: int) -> dict[str, Any]:
    """Returns a row of the JSON file."""
    first, run = system.opening + system.first_epoch, system.run(num_epochs)
    parts = {"first_epoch": first, "later_epoch": system.later_epoch, "run": run}
    usd = {each.store: {name: round(each.dollars(part), 6) for name, part in parts.items()} for each in access.PRICES}
    return {**asdict(system), "run": asdict(run), "usd": usd}


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Measures ours, and prices all systems."""
    workload = access.Workload(load.samples, parse_size(load.sample_bytes, name="--sample-bytes"), load.epochs)
    peers = Path(load.peers)
    seen = access.peer_accesses(json.loads(peers.read_text(encoding="utf-8")), workload) if peers.is_file() else []
    if load.peers and not peers.is_file():
        console.print(f"no figures of peers: there is no file {peers}", highlight=False)
    with (
        tempfile.TemporaryDirectory(prefix="cost-benchmark-") as folder,
        local_s3(kinds=("minio", "moto")) as server,  # its own: nothing is left in anybody's bucket
        bar(console, "cost", len(_SYSTEMS)) as progress,
    ):
        measured = measure(load, workload.sample_bytes, server, Path(folder), on_side=progress.advance)
    ours = [access.scaled(one, workload, per_object="object" in one.system) for one in measured]
    return {
        "workload": asdict(workload),
        "measured": [asdict(one) for one in measured],
        "rows": [priced(each, workload.num_epochs) for each in (*ours, *seen, *access.computed(workload))],
        "prices_as_of": access.PRICES_AS_OF,
        "prices": [asdict(price) for price in access.PRICES],
        "chunk_sizes": access.CHUNK_SIZES,
        "server": server.kind,
    }


main = program("cost", __doc__, run_benchmark, FULL, QUICK, "samples", "sample_bytes", "epochs", "peers")

if __name__ == "__main__":
    raise SystemExit(main())
