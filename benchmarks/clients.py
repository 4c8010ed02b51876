"""Which S3 client should `open_store` take? Every client, through our own stores, against one local server.

    python -m benchmarks.clients [--json FILE] [--quick]

Small objects at 32 in flight and 8 MiB ranges at 16 in flight, the ranges over ``https://`` as well. Rounds alternate
between the clients, so that a busy machine is busy for all of them. Figures are medians, and the CPU time that the
client cost this process (the server is another). No store of ours reads S3 by obstore: it is measured bare, without the
checks and the renewal of credentials that a store adds.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import obstore
import urllib3
from rich.console import Console
from werkzeug.serving import make_ssl_devcert

from benchmarks.bucket import at_once, obstore_client, put_all
from benchmarks.command import bar, in_turns, program
from concurrent_loader.storage.stores import Store, open_store
from concurrent_loader.storage.testing import local_s3
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
_RANGE_KEYS = ("gb_per_s", "cpu_s_per_gb")

Cost = tuple[float, float]  # of one round of one client: wall time, and CPU time of this process
Readers = tuple[Callable[[str], Awaitable[object]], Callable[[str, int], Awaitable[object]]]  # of a key; of a range


@dataclass(frozen=True, slots=True)
class Load:
    """How much is fetched in a round."""

    num_keys: int
    num_small: int
    num_ranges: int
    num_rounds: int

    @property
    def num_blocks(self) -> int:
        """Ranges that the large object has."""
        return min(self.num_ranges, 16)


FULL = Load(num_keys=500, num_small=2000, num_ranges=64, num_rounds=5)
QUICK = Load(num_keys=3, num_small=6, num_ranges=2, num_rounds=1)


def summarise(costs: Sequence[tuple[Cost, Cost]], load: Load) -> dict[str, float]:
    """Returns medians over the rounds, per request and per GB."""
    num_gb = load.num_ranges * RANGE_BYTES / 1e9
    small_s, ranges_s = (median(wall_s for wall_s, _ in each) for each in zip(*costs, strict=True))
    small_cpu_s, ranges_cpu_s = (median(cpu_s for _, cpu_s in each) for each in zip(*costs, strict=True))
    return {
        "small_per_s": load.num_small / small_s,
        "small_cpu_ms": 1000 * small_cpu_s / load.num_small,
        "ranges_gb_per_s": num_gb / ranges_s,
        "ranges_cpu_s_per_gb": ranges_cpu_s / num_gb,
    }


async def measure(
    url: str,
    options: Mapping[str, Any],
    load: Load,
    on_round: Callable[[], object],
    clients: Sequence[str] = (*CLIENTS,),
) -> dict[str, dict[str, float]]:
    """Lets every client read a filled bucket in turn, and sums up."""
    costs: dict[str, list[tuple[Cost, Cost]]] = {name: [] for name in clients}
    async with AsyncExitStack() as stack:
        readers = {
            name: _obstore_readers(url, options)
            if (client := CLIENTS[name]) is None
            else _readers(await stack.enter_async_context(open_store(url, client=client, **options)))
            for name in clients
        }
        for _, name in in_turns(clients, load.num_rounds + 1):
            costs[name].append(await _read(readers[name], load))
            on_round()
    # The first round makes clients and connections.
    return {name: summarise(found[1:], load) for name, found in costs.items()}


async def _read(readers: Readers, load: Load) -> tuple[Cost, Cost]:
    read, read_range = readers

    def small(number: int) -> Awaitable[object]:
        return read(f"small/{number % load.num_keys:05d}")

    def large(number: int) -> Awaitable[object]:
        return read_range("large", number % load.num_blocks * RANGE_BYTES)

    return await _timed(small, load.num_small, SMALL_IN_FLIGHT), await _timed(large, load.num_ranges, RANGES_IN_FLIGHT)


def _readers(store: Store) -> Readers:
    return store.get, lambda key, start: store.get_range(key, start, start + RANGE_BYTES)


def _obstore_readers(url: str, options: Mapping[str, Any]) -> Readers:
    client = obstore_client(url.removeprefix("s3://"), options)

    async def read(key: str) -> object:
        return await (await obstore.get_async(client, key)).bytes_async()

    return read, lambda key, start: obstore.get_range_async(client, key, start=start, end=start + RANGE_BYTES)


async def _timed(read: Callable[[int], Awaitable[object]], num_requests: int, in_flight: int) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    await at_once(read, range(num_requests), in_flight)
    return time.perf_counter() - wall, time.process_time() - cpu


@contextmanager
def _https_server(data_dir: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Starts MinIO over TLS on the data of another one that has ended; yields the options of a store."""
    keys, certificates = new_credentials(), folder / "certs"
    certificates.mkdir(parents=True)
    certificate, key = make_ssl_devcert(str(certificates / "server"), host="127.0.0.1")
    Path(certificate).rename(certificates / "public.crt")
    Path(key).rename(certificates / "private.key")
    options = {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key}
    program = find_program(("minio",), data_dir=data_dir, home=folder, build=True, progress=None, **options)
    port = free_port()
    command, log = program.command(port), folder / "server.log"
    process = SupervisedProcess(command, environment=program.environment, log=log, remove=folder)
    try:
        urllib3.disable_warnings()  # of a certificate that nobody has signed
        until_ready = urllib3.Retry(30, backoff_factor=0.05, backoff_max=1.0, status_forcelist=[503])
        with urllib3.HTTPSConnectionPool("127.0.0.1", port, cert_reqs="CERT_NONE", retries=until_ready) as pool:
            pool.request("GET", "/minio/health/ready")
        yield {"endpoint_url": f"https://127.0.0.1:{port}", "region": "us-east-1", **options}
    finally:
        process.stop()


def fill(url: str, options: Mapping[str, str], load: Load) -> None:
    """Puts the objects that the clients read into a bucket."""
    small = secrets.token_bytes(SMALL_BYTES)
    values = {f"small/{number:05d}": small for number in range(load.num_keys)}
    put_all(url, options, values | {"large": secrets.token_bytes(load.num_blocks * RANGE_BYTES)})


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Measures over ``http://``, and ranges over ``https://``."""
    num_measured = (load.num_rounds + 1) * (len(CLIENTS) + len(HTTPS_CLIENTS))
    with TemporaryDirectory() as folder, bar(console, "clients", num_measured) as progress:
        data_dir, name = Path(folder) / "data", f"clients-{secrets.token_hex(6)}"
        with local_s3(kinds=("minio",), data_dir=data_dir) as server:
            url, options = server.make_bucket(name), server.storage_options()
            fill(url, options, load)
            over_http = asyncio.run(measure(url, options, load, progress.advance))
        with _https_server(data_dir, Path(folder) / "https") as tls_options:
            tls: dict[str, Any] = {**tls_options, "verify_tls": False}
            ranges = replace(load, num_small=1)
            over_https = asyncio.run(measure(url, tls, ranges, progress.advance, HTTPS_CLIENTS))
    figures = {
        name: {**row, **{f"https_{key}": over_https.get(name, {}).get(f"ranges_{key}") for key in _RANGE_KEYS}}
        for name, row in over_http.items()
    }
    sizes = {"small_bytes": SMALL_BYTES, "range_bytes": RANGE_BYTES}
    counts = {"small_in_flight": SMALL_IN_FLIGHT, "ranges_in_flight": RANGES_IN_FLIGHT}
    return {"clients": figures, "load": asdict(load) | sizes | counts, "server": server.kind}


main = program("clients", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
