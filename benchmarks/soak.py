"""Hours of bad weather: ``python -m benchmarks.soak [--minutes M] --json FILE``, or ``make soak``.

Epochs of a real loader over a real cache folder that is too small, from MinIO behind toxiproxy behind the faulty HTTP
proxy, while `benchmarks.weather` changes every few seconds. Each sample's digest is compared with the truth. What ends
an epoch must be an error of the tree: it is counted, and the loader goes on from its own state, so that every sample is
still delivered exactly once. Anything else (a wrong sample, one too many, another exception, a hang) fails the run.
"""

from __future__ import annotations

import faulthandler
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import xxhash
from rich.console import Console

from benchmarks.command import bar, program
from benchmarks.weather import Weather, forecast
from concurrent_loader import Batch, ConcurrentDataLoader, RetryPolicy, ShardDataset, ShardWriter, StorageError
from concurrent_loader.storage.testing import LocalS3, http_faults_process, mortal_s3, toxiproxy

_URL = "s3://soak/data"
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


@dataclass(frozen=True, slots=True)
class Load:
    """How long, and over what."""

    minutes: float = 30.0
    samples: int = 3000  # of the dataset: 36 MB
    shortest: float = 2.0  # seconds, of a spell of weather
    longest: float = 6.0
    seed: int = 0  # of samples, order and weather


FULL, QUICK = Load(), Load(0.1, 300, 0.1, 0.3)


class Soak:
    """One run, and what has been seen so far."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._truth: list[int] = []  # digest of each sample
        self._num_bytes = 0  # of all samples
        self._until = 0.0
        self._look_out: Callable[[], None] = lambda: None  # called at each batch
        self._num_epochs = self._num_samples = self._wrong_samples = 0
        self._errors: Counter[str] = Counter()
        self._fetch: Counter[str] = Counter()
        self._cache: Counter[str] = Counter()
        self._ends: dict[str, list[Any]] = {"descriptors": [], "threads": [], "rss_mb": []}  # after each epoch

    def run(self, console: Console) -> dict[str, Any]:
        """Runs epochs in bad weather until the time is over; raises AssertionError for a wrong sample."""
        load, began = self._load, time.monotonic()
        with ExitStack() as stack:
            stack.callback(faulthandler.cancel_dump_traceback_later)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True))
            mortal = stack.enter_context(mortal_s3())
            self._fill(mortal.server)
            network = stack.enter_context(toxiproxy(mortal.server, latency_ms=0, bandwidth_mb_s=None))
            faults = stack.enter_context(http_faults_process(mortal.server.through(network)))
            self._measure_process()
            progress = stack.enter_context(bar(console, "Seconds", round(load.minutes * 60)))
            spells = forecast(load.seed, shortest_s=load.shortest, longest_s=load.longest)
            cache = Path(folder) / "cache"
            with Weather(spells, faults=faults, network=network, mortal=mortal, cache=cache) as weather:

                def look_out() -> None:
                    faulthandler.dump_traceback_later(_HANG_S, exit=True)
                    progress.reach(round(time.monotonic() - began))
                    if weather.error is not None:
                        raise AssertionError("the weather could not be made") from weather.error

                self._look_out, self._until = look_out, began + load.minutes * 60
                while time.monotonic() < self._until:
                    self._open_and_read(mortal.server.through(faults), cache)
            self._measure_process()
            facts = {"seconds": round(time.monotonic() - began), "spells": dict(weather.counts)}
            facts |= {"faults": faults.counts(), "proxy_restarts": weather.num_restarts, **self._figures()}
        if self._wrong_samples:
            raise AssertionError(f"{self._wrong_samples} wrong samples: {facts}")
        return facts

    def _measure_process(self) -> None:
        process = psutil.Process()
        self._ends["descriptors"].append(process.num_fds())
        self._ends["threads"].append(process.num_threads())
        self._ends["rss_mb"].append(round(process.memory_info().rss / 1e6, 1))

    def _fill(self, server: LocalS3) -> None:
        server.make_bucket("soak")
        rng = np.random.default_rng(self._load.seed)
        columns, options = {"data": "bytes", "label": "int64"}, server.storage_options()
        with ShardWriter(_URL, columns=columns, shard_size=_SHARD_SIZE, storage_options=options) as writer:
            for label in range(self._load.samples):
                data = rng.bytes(1 + int(rng.exponential(_MEAN_BYTES)))
                self._truth.append(xxhash.xxh3_64_intdigest(data))
                self._num_bytes += len(data)
                writer.write({"data": data, "label": label})

    def _open_and_read(self, server: LocalS3, cache: Path) -> None:
        """Opens the dataset, reads some epochs and closes it."""
        self._look_out()
        try:
            dataset = ShardDataset(
                _URL, storage_options=server.storage_options(), cache_dir=cache,
                cache_bytes=round(self._num_bytes * _CACHE_SHARE), retry=_POLICY,
            )  # fmt: skip
        except StorageError as error:
            self._errors[f"open: {type(error).__name__}"] += 1
            return
        with dataset:
            # Few shards at a time: the others come and go.
            few: dict[str, Any] = {"shuffle_window": _WINDOW, "prefetch_bytes": _WINDOW}
            loader = ConcurrentDataLoader(dataset, _BATCH_SIZE, shuffle=True, seed=self._load.seed, **few)
            loader.set_epoch(self._num_epochs)
            for _ in range(_EPOCHS_AN_OPENING):
                seen = self._read_epoch(loader)
                if sorted(seen) != list(range(len(self._truth))):
                    raise AssertionError(f"an epoch of {len(seen)} samples, of which {len(set(seen))} differ")
                self._num_epochs += 1
                self._measure_process()
                if time.monotonic() > self._until:
                    break
            for into, stats in ((self._fetch, dataset.fetch_stats), (self._cache, dataset.cache_stats)):
                into.update({name: value for name, value in asdict(stats).items() if name.startswith("num_")})
            self._fetch["wasted_bytes"] += dataset.fetch_stats.wasted_bytes

    def _read_epoch(self, loader: ConcurrentDataLoader) -> list[int]:
        """Reads one epoch to its end, over all errors of the tree; returns the labels in order."""
        seen: list[int] = []
        num_batches = len(loader)
        while True:
            try:
                for batch in loader:
                    self._look_out()
                    seen += self._check(batch)
                return seen
            except StorageError as error:
                self._look_out()
                self._errors[type(error).__name__] += 1
                if sum(self._errors.values()) > 100 * (self._num_epochs + 1) + num_batches:
                    raise
                loader.load_state_dict(loader.state_dict())

    def _check(self, batch: Batch) -> list[int]:
        labels: list[int] = batch["label"].tolist()
        for label, data in zip(labels, batch["data"], strict=True):
            self._num_samples += 1
            self._wrong_samples += xxhash.xxh3_64_intdigest(data) != self._truth[label]
        return labels

    def _figures(self) -> dict[str, Any]:
        # The first third warms up allocators and pools; what leaks goes on.
        descriptors, threads, rss_mb = self._ends.values()
        third = max(1, len(rss_mb) // 3)
        drift_mb = median(rss_mb[-third:]) - median(rss_mb[third : 2 * third] or [0])
        counted = ("retries", "resumed", "hedges", "throttled", "refetched")
        return {
            "options": asdict(self._load),
            "epochs": self._num_epochs,
            "samples": self._num_samples,
            "wrong_samples": self._wrong_samples,
            "errors": dict(self._errors),
            **{name: self._fetch[f"num_{name}"] for name in counted},
            "quarantined": self._cache["num_quarantined"],
            "fetch": dict(self._fetch),
            "cache": dict(self._cache),
            "max_fd": max(descriptors),
            "fd_before": descriptors[0],
            "fd_after": descriptors[-1],
            "max_threads": max(threads),
            "rss_mb": rss_mb[-1],
            "rss_drift_mb": round(drift_mb, 1),
            "ends": self._ends,
        }


main = program("soak", __doc__, lambda load, console: Soak(load).run(console), FULL, QUICK, "minutes", "seed")

if __name__ == "__main__":
    raise SystemExit(main())
