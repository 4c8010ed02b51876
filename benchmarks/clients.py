"""Which S3 client should `concurrent_loader.storage.open_store` take? Every client, through our own stores, against one
local server.

    python -m benchmarks.clients [--json FILE] [--quick]

Small objects at 32 in flight and 8 MiB ranges at 16 in flight, the ranges over ``https://`` as well; rounds alternate
between the clients, so that a busy machine is busy for all of them; medians, and the CPU time that the client cost this
process (the server is another). No store of ours speaks S3 by obstore: it is measured bare, without the checks and the
renewal of credentials that a store adds.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import ssl
import statistics
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import obstore
import obstore.store
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from rich.console import Console

from benchmarks.console import bar
from benchmarks.machine import describe_machine, versions
from benchmarks.output import present
from concurrent_loader.storage.stores import Store, open_store
from concurrent_loader.storage.testing import local_s3
from concurrent_loader.storage.testing.servers.errors import ServerFailed
from concurrent_loader.storage.testing.servers.local_s3 import new_credentials
from concurrent_loader.storage.testing.servers.processes import SupervisedProcess
from concurrent_loader.storage.testing.servers.programs import find_program
from concurrent_loader.storage.testing.servers.startup import free_port

CLIENTS = {"native": "native", "obstore": None, "aiobotocore": "aiobotocore", "s3fs": "fsspec"}
HTTPS_CLIENTS = ("native", "obstore", "aiobotocore")
SMALL_BYTES = 58_000
RANGE_BYTES = 8 << 20
SMALL_IN_FLIGHT = 32
RANGES_IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked for in a round: ``small`` so that a test can run it, `FULL` for figures."""

    num_keys: int
    num_small: int
    num_ranges: int
    num_rounds: int


FULL = Load(num_keys=500, num_small=2000, num_ranges=64, num_rounds=5)
QUICK = Load(num_keys=3, num_small=6, num_ranges=2, num_rounds=1)


@dataclass(frozen=True, slots=True)
class Cost:
    """One round of one client: wall time, and CPU time of this process."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of a client's rounds."""

    small_per_s: float  # objects of 58 KB a second
    small_cpu_ms: float  # CPU time of one of them
    ranges_gb_per_s: float  # GB a second in ranges of 8 MiB
    ranges_cpu_s_per_gb: float  # CPU time of a GB
    https_gb_per_s: float | None = None  # the same ranges over ``https://``; None where they were not measured
    https_cpu_s_per_gb: float | None = None  # CPU time of a GB over ``https://``


def summarise(small: list[Cost], ranges: list[Cost], load: Load) -> Figures:
    """Medians over rounds, per request and per GB."""
    num_gb = load.num_ranges * RANGE_BYTES / 1e9
    return Figures(
        small_per_s=load.num_small / statistics.median(cost.wall_s for cost in small),
        small_cpu_ms=1000 * statistics.median(cost.cpu_s for cost in small) / load.num_small,
        ranges_gb_per_s=num_gb / statistics.median(cost.wall_s for cost in ranges),
        ranges_cpu_s_per_gb=statistics.median(cost.cpu_s for cost in ranges) / num_gb,
    )


async def measure(
    url: str, options: Mapping[str, str], load: Load, *, on_round: Callable[[], object] = lambda: None
) -> dict[str, Figures]:
    """Fills a bucket, lets every client read it in turn, and sums up."""
    async with open_store(url, client="native", **options) as store:
        data = secrets.token_bytes(SMALL_BYTES)
        await asyncio.gather(*(store.put(f"small/{number:05d}", data) for number in range(load.num_keys)))
        await store.put("large", secrets.token_bytes(_num_blocks(load) * RANGE_BYTES))
    small, ranges = await _rounds(url, options, load, tuple(CLIENTS), load.num_small, on_round)
    return {name: summarise(small[name], ranges[name], load) for name in CLIENTS}


async def measure_https(
    url: str, options: Mapping[str, str], load: Load, *, on_round: Callable[[], object] = lambda: None
) -> dict[str, tuple[float, float]]:
    """Reads the ranges of a bucket that `measure` has filled; returns GB a second and CPU s a GB of each client."""
    _, ranges = await _rounds(url, {**options, "verify_tls": False}, load, HTTPS_CLIENTS, 1, on_round)
    found = {name: summarise(ranges[name], ranges[name], load) for name in HTTPS_CLIENTS}
    return {name: (each.ranges_gb_per_s, each.ranges_cpu_s_per_gb) for name, each in found.items()}


async def _rounds(
    url: str,
    options: Mapping[str, Any],
    load: Load,
    clients: tuple[str, ...],
    num_small: int,
    on_round: Callable[[], object],
) -> tuple[dict[str, list[Cost]], dict[str, list[Cost]]]:
    small: dict[str, list[Cost]] = {name: [] for name in clients}
    ranges: dict[str, list[Cost]] = {name: [] for name in clients}
    async with AsyncExitStack() as stack:
        readers = {
            name: _obstore_readers(url, options)
            if (client := CLIENTS[name]) is None
            else _readers(await stack.enter_async_context(open_store(url, client=client, **options)))
            for name in clients
        }
        for number in range(load.num_rounds + 1):
            for name in _rotated(list(clients), number):
                read, read_range = readers[name]
                small_cost = await _timed(partial(_small, read, load), num_small, SMALL_IN_FLIGHT)
                range_cost = await _timed(partial(_large, read_range, load), load.num_ranges, RANGES_IN_FLIGHT)
                if number:  # the first round makes clients and connections
                    small[name].append(small_cost)
                    ranges[name].append(range_cost)
                on_round()
    return small, ranges


def _num_blocks(load: Load) -> int:
    """How many ranges the large object has."""
    return min(load.num_ranges, 16)


def _small(read: Callable[[str], Awaitable[int]], load: Load, number: int) -> Awaitable[int]:
    return read(f"small/{number % load.num_keys:05d}")


def _large(read: Callable[[str, int], Awaitable[int]], load: Load, number: int) -> Awaitable[int]:
    return read("large", number % _num_blocks(load) * RANGE_BYTES)


Readers = tuple[Callable[[str], Awaitable[int]], Callable[[str, int], Awaitable[int]]]


def _readers(store: Store) -> Readers:
    async def read(key: str) -> int:
        return len((await store.get(key)).data)

    async def read_range(key: str, start: int) -> int:
        return len((await store.get_range(key, start, start + RANGE_BYTES)).data)

    return read, read_range


def _obstore_readers(url: str, options: Mapping[str, Any]) -> Readers:
    endpoint_url = options["endpoint_url"]
    client = obstore.store.S3Store(
        url.removeprefix("s3://"),
        endpoint=endpoint_url,
        region=options["region"],
        access_key_id=options["access_key_id"],
        secret_access_key=options["secret_access_key"],
        virtual_hosted_style_request=False,
        client_options={
            "allow_http": endpoint_url.startswith("http://"),
            "allow_invalid_certificates": not options.get("verify_tls", True),
        },
    )

    async def read(key: str) -> int:
        return len(memoryview(await (await obstore.get_async(client, key)).bytes_async()))

    async def read_range(key: str, start: int) -> int:
        return len(memoryview(await obstore.get_range_async(client, key, start=start, end=start + RANGE_BYTES)))

    return read, read_range


async def _timed(read: Callable[[int], Awaitable[int]], num_requests: int, in_flight: int) -> Cost:
    numbers = iter(range(num_requests))

    async def work() -> None:
        for number in numbers:
            await read(number)

    wall, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def _rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


@contextmanager
def _https_server(data_dir: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Starts MinIO over TLS, with a certificate of its own, on the data of another one that has ended."""
    keys = new_credentials()
    _write_certificate(folder / "certs")
    program = find_program(
        ("minio",),
        data_dir=data_dir,
        home=folder,
        access_key_id=keys.access_key,
        secret_access_key=keys.secret_key,
        build=True,
        progress=None,
    )
    port = free_port()
    process = SupervisedProcess(
        program.command(port), environment=program.environment, log=folder / "server.log", remove=folder
    )
    try:
        deadline_s = time.monotonic() + 30
        while not _accepts(port):
            if process.wait(0.05) or time.monotonic() > deadline_s:
                raise ServerFailed(f"the server over https:// did not start: {process.log_text()}")
        yield {
            "endpoint_url": f"https://127.0.0.1:{port}",
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "region": "us-east-1",
        }
    finally:
        process.stop()


def _accepts(port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    ready = f"https://127.0.0.1:{port}/minio/health/ready"
    try:
        with urllib.request.urlopen(ready, context=context, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _write_certificate(folder: Path) -> None:
    folder.mkdir(parents=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "benchmark")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "private.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    (folder / "public.crt").write_bytes(signed.public_bytes(pem))


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="a few requests, to see that it works")
    options = parser.parse_args(arguments)
    file: Path | None = options.json
    load = QUICK if options.quick else FULL
    console = Console()
    machine = describe_machine()
    num_measured = (load.num_rounds + 1) * (len(CLIENTS) + len(HTTPS_CLIENTS))
    with TemporaryDirectory() as folder, bar(console, "clients", num_measured) as progress:
        data_dir, url = Path(folder) / "data", f"s3://clients-{secrets.token_hex(6)}"
        with local_s3(kinds=("minio",), data_dir=data_dir) as server:
            server.make_bucket(url.removeprefix("s3://"))
            figures = asyncio.run(measure(url, server.storage_options(), load, on_round=progress.advance))
        with _https_server(data_dir, Path(folder) / "https") as tls_options:
            over_https = asyncio.run(measure_https(url, tls_options, load, on_round=progress.advance))
    for name, (gb_per_s, cpu_s_per_gb) in over_https.items():
        figures[name] = replace(figures[name], https_gb_per_s=gb_per_s, https_cpu_s_per_gb=cpu_s_per_gb)
    report = {
        "clients": {name: asdict(found) for name, found in figures.items()},
        "load": asdict(load)
        | {"small_bytes": SMALL_BYTES, "range_bytes": RANGE_BYTES}
        | {"small_in_flight": SMALL_IN_FLIGHT, "ranges_in_flight": RANGES_IN_FLIGHT},
        "server": server.kind,
        "machine": machine,
        "versions": versions(),
    }
    present("clients", report, console, file)


if __name__ == "__main__":
    main()
