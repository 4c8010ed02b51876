"""Hours of bad weather: ``python -m benchmarks.soak --minutes 30 --json FILE``, or ``make soak``.

Epochs of a real loader over a real cache folder that is too small, from MinIO behind toxiproxy behind the faulty HTTP
proxy, while `benchmarks.weather` changes every few seconds. Each sample's digest is compared with the truth. What ends
an epoch must be an error of the tree: it is counted, and the loader goes on from its own state, so that every sample is
still delivered exactly once. Anything else (a wrong sample, one too many, another exception, a hang) fails the run.
"""

from __future__ import annotations

import faulthandler
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import xxhash
from rich.console import Console

from benchmarks.command import bar, command_line, publish
from benchmarks.weather import Weather, forecast
from concurrent_loader import Batch, ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.fetch import RetryPolicy
from concurrent_loader.storage.testing import LocalS3, http_faults_process, mortal_s3, toxiproxy

_BATCH_SIZE = 32
_MEAN_BYTES = 12_000
_SHARD_SIZE = "512KiB"
_WINDOW = "2MiB"
_CACHE_SHARE = 0.4
_EPOCHS_AN_OPENING = 5  # then the dataset is closed and opened again
_HANG_S = 300.0
# Short enough that a spell of bad weather is felt, patient enough to outlast it.
_POLICY = RetryPolicy(
    max_attempts=40, max_delay_s=2.0, first_byte_s=2.0, min_bytes_per_s=256 * 1024, stall_window_s=2.0, deadline_s=90.0
)


@dataclass(slots=True)
class _Record:
    """What has been seen so far."""

    num_epochs: int = 0
    num_samples: int = 0
    wrong_samples: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    fetch: Counter[str] = field(default_factory=Counter)
    cache: Counter[str] = field(default_factory=Counter)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)

    def count(self, dataset: ShardDataset) -> None:
        """Adds what a dataset that is about to be closed has counted."""
        for into, stats in ((self.fetch, dataset.fetch_stats), (self.cache, dataset.cache_stats)):
            into.update({name: value for name, value in asdict(stats).items() if name.startswith("num_")})
        self.fetch["wasted_bytes"] += dataset.fetch_stats.wasted_bytes

    def look(self) -> None:
        """Takes the process's measure, at an epoch's end."""
        process = psutil.Process()
        self.descriptors.append(process.num_fds())
        self.threads.append(process.num_threads())
        self.rss_mb.append(round(process.memory_info().rss / 1e6, 1))


def run_soak(options: Namespace, record: _Record, console: Console) -> dict[str, Any]:
    """Runs epochs in bad weather until the time is over."""
    began = time.monotonic()
    with ExitStack() as stack:
        stack.callback(faulthandler.cancel_dump_traceback_later)
        folder = Path(tempfile.mkdtemp(prefix="concurrent-loader-soak-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cache = folder / "cache"
        mortal = stack.enter_context(mortal_s3())
        truth, num_bytes = _fill(mortal.server, options)
        network = stack.enter_context(toxiproxy(mortal.server, latency_ms=0, bandwidth_mb_s=None))
        faults = stack.enter_context(http_faults_process(mortal.server.through(network)))
        record.look()
        before = record.descriptors[0]
        progress = stack.enter_context(bar(console, "Seconds", round(options.minutes * 60)))
        spells = forecast(options.seed, shortest_s=options.shortest, longest_s=options.longest)
        with Weather(spells, faults=faults, network=network, mortal=mortal, cache=cache) as weather:
            until = began + options.minutes * 60

            def look_out() -> None:
                faulthandler.dump_traceback_later(_HANG_S, exit=True)
                progress.reach(round(time.monotonic() - began))
                if weather.error is not None:
                    raise AssertionError("the weather could not be made") from weather.error

            while time.monotonic() < until:
                _open_and_read(
                    mortal.server.through(faults),
                    options,
                    truth=truth,
                    cache=cache,
                    cache_bytes=round(num_bytes * _CACHE_SHARE),
                    record=record,
                    until=until,
                    look_out=look_out,
                )
        record.look()
        return {
            **_figures(options, record, weather.counts, faults.counts(), before, time.monotonic() - began),
            "proxy_restarts": weather.num_restarts,
        }


def _fill(server: LocalS3, options: Namespace) -> tuple[list[int], int]:
    """Makes the dataset; returns each sample's digest, and the bytes of all."""
    server.make_bucket("soak")
    dice = np.random.default_rng(options.seed)
    truth: list[int] = []
    num_bytes = 0
    with ShardWriter(
        "s3://soak/data",
        columns={"data": "bytes", "label": "int64"},
        shard_size=_SHARD_SIZE,
        storage_options=server.storage_options(),
    ) as writer:
        for label in range(options.samples):
            data = dice.bytes(1 + int(dice.exponential(_MEAN_BYTES)))
            truth.append(xxhash.xxh3_64_intdigest(data))
            num_bytes += len(data)
            writer.write({"data": data, "label": label})
    return truth, num_bytes


def _open_and_read(
    server: LocalS3,
    options: Namespace,
    *,
    truth: list[int],
    cache: Path,
    cache_bytes: int,
    record: _Record,
    until: float,
    look_out: Callable[[], None],
) -> None:
    """Opens the dataset, reads some epochs and closes it."""
    look_out()
    try:
        dataset = ShardDataset(
            "s3://soak/data",
            client=options.client,
            storage_options=server.storage_options(),
            cache_dir=cache,
            cache_bytes=cache_bytes,
            retry=_POLICY,
        )
    except StorageError as error:
        record.errors[f"open: {type(error).__name__}"] += 1
        return
    with dataset:
        loader = ConcurrentDataLoader(
            dataset,
            batch_size=_BATCH_SIZE,
            shuffle=True,
            seed=options.seed,
            # Few shards at a time: the others come and go.
            shuffle_window=_WINDOW,
            prefetch_bytes=_WINDOW,
        )
        loader.set_epoch(record.num_epochs)
        for _ in range(_EPOCHS_AN_OPENING):
            seen = _read_epoch(loader, truth, record, look_out)
            if sorted(seen) != list(range(len(truth))):
                raise AssertionError(f"an epoch of {len(seen)} samples, of which {len(set(seen))} differ")
            record.num_epochs += 1
            record.look()
            if time.monotonic() > until:
                break
        record.count(dataset)


def _read_epoch(
    loader: ConcurrentDataLoader, truth: list[int], record: _Record, look_out: Callable[[], None]
) -> list[int]:
    """Reads one epoch to its end, over all errors of the tree; returns the labels in order."""
    seen: list[int] = []
    num_batches = len(loader)
    while True:
        try:
            for batch in loader:
                look_out()
                seen += _check(batch, truth, record)
            return seen
        except StorageError as error:
            look_out()
            record.errors[type(error).__name__] += 1
            if sum(record.errors.values()) > 100 * (record.num_epochs + 1) + num_batches:
                raise
            loader.load_state_dict(loader.state_dict())


def _check(batch: Batch, truth: list[int], record: _Record) -> list[int]:
    labels: list[int] = batch["label"].tolist()
    for label, data in zip(labels, batch["data"], strict=True):
        record.num_samples += 1
        record.wrong_samples += xxhash.xxh3_64_intdigest(data) != truth[label]
    return labels


def _figures(
    options: Namespace,
    record: _Record,
    spells: Counter[str],
    faults: dict[str, int],
    descriptors_before: int,
    took_s: float,
) -> dict[str, Any]:
    third = max(1, len(record.rss_mb) // 3)
    return {
        "options": {**vars(options), "json": None, "spell_s": [options.shortest, options.longest]},
        "seconds": round(took_s),
        "epochs": record.num_epochs,
        "samples": record.num_samples,
        "wrong_samples": record.wrong_samples,
        "spells": dict(spells),
        "faults": faults,
        "errors": dict(record.errors),
        "retries": record.fetch["num_retries"],
        "resumed": record.fetch["num_resumed"],
        "hedges": record.fetch["num_hedges"],
        "throttled": record.fetch["num_throttled"],
        "refetched": record.fetch["num_refetched"],
        "quarantined": record.cache["num_quarantined"],
        "fetch": dict(record.fetch),
        "cache": dict(record.cache),
        "max_fd": max(record.descriptors),
        "fd_before": descriptors_before,
        "fd_after": record.descriptors[-1],
        "max_threads": max(record.threads),
        # The first third warms up allocators and pools; what leaks goes on.
        "rss_mb": record.rss_mb[-1],
        "rss_drift_mb": round(median(record.rss_mb[-third:]) - median(record.rss_mb[third : 2 * third] or [0]), 1),
        "ends": {"descriptors": record.descriptors, "threads": record.threads, "rss_mb": record.rss_mb},
    }


def parse_options(arguments: Sequence[str] | None) -> Namespace:
    """Reads the command line."""
    parser = command_line("soak", __doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, help="how long (default 30)")
    add("--samples", type=int, default=3000, help="of the dataset (default 3000, 36 MB)")
    add("--shortest", type=float, default=2.0, help="seconds, of a spell of weather (default 2)")
    add("--longest", type=float, default=6.0, help="seconds, of a spell of weather (default 6)")
    add("--seed", type=int, default=0, help="of samples, order and weather (default 0)")
    add("--client", default="auto", help="auto, native, aiobotocore")
    options = parser.parse_args(arguments)
    if options.quick:
        options.minutes, options.samples, options.shortest, options.longest = 0.1, 300, 0.1, 0.3
    if options.minutes <= 0 or options.samples < 1 or not 0 < options.shortest <= options.longest:
        parser.error("--minutes and --samples are positive, --shortest is not longer than --longest")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the soak test; returns the exit status."""
    options = parse_options(arguments)
    record = _Record()
    status = publish("soak", lambda console: run_soak(options, record, console), options.json)
    if record.wrong_samples:
        raise AssertionError(f"{record.wrong_samples} wrong samples")
    return status


if __name__ == "__main__":
    sys.exit(main())
