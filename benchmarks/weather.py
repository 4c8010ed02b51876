"""What a soak test has to endure: spells of bad weather, drawn from a seed, over network, server and cache folder."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from mmap import mmap
from pathlib import Path
from typing import Self

from concurrent_loader.storage.errors import ConnectionFailed, StorageError
from concurrent_loader.storage.testing import HttpFaultsProcess, MortalS3, Toxiproxy
from concurrent_loader.storage.testing.faults.wire_faults import Rates

# HTTP, at the faulty proxy; milder than what no deadline outlasts.
_RATES: dict[str, Rates] = {
    "storm": Rates(slow_down=0.5),
    "storm_of_all": Rates(slow_down=1.0),
    "errors": Rates(error=0.2),
    "resets": Rates(reset=0.15, reset_body=0.15),
    "cut_bodies": Rates(close_body=0.4),
    "stalls": Rates(silence=0.03, stall=0.03),
    "flips": Rates(flip=0.1),
    "lies": Rates(lie=0.2),
    "slow_tail": Rates(latency_s=0.02, slow=0.02),
    "mixed": Rates(slow_down=0.1, error=0.05, reset=0.05, reset_body=0.05, close_body=0.05, stall=0.02, flip=0.02),
}
# TCP, at toxiproxy.
_TOXICS: dict[str, tuple[str, float, dict[str, int]]] = {
    "latency": ("latency", 1.0, {"latency": 80, "jitter": 40}),
    "bandwidth": ("bandwidth", 1.0, {"rate": 2_000}),
    "slicer": ("slicer", 1.0, {"average_size": 4_000, "size_variation": 2_000, "delay": 50}),
    "reset_peer": ("reset_peer", 0.3, {"timeout": 50}),
    "limit_data": ("limit_data", 0.5, {"bytes": 200_000}),
    "timeout": ("timeout", 0.1, {"timeout": 500}),
}
_OTHERS = (
    "calm", "network_away", "server_frozen", "server_killed", "cache_flipped", "cache_truncated", "cache_deleted"
)  # fmt: skip
KINDS = (*_RATES, *_TOXICS, *_OTHERS)
_FREEZE_S = 1.5
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Spell:
    """Weather for a while."""

    kind: str  # one of `KINDS`
    duration_s: float  # how long it lasts
    seed: int  # of what is drawn while it does


def forecast(seed: int, *, shortest_s: float, longest_s: float) -> Iterator[Spell]:
    """Yields spells for ever: every kind once, in an order of the seed's, then again in another."""
    rng = random.Random(seed)
    while True:
        for kind in rng.sample(KINDS, len(KINDS)):
            yield Spell(kind, rng.uniform(shortest_s, longest_s), rng.randrange(1 << 31))


class Weather:
    """Makes the weather on a thread of its own for as long as the ``with`` block lasts; the sky is clear afterwards."""

    def __init__(
        self, spells: Iterator[Spell], *, faults: HttpFaultsProcess, network: Toxiproxy, mortal: MortalS3, cache: Path
    ) -> None:
        self._spells = spells
        self._faults = faults
        self._network = network
        self._mortal = mortal
        self._cache = cache
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weather")
        self.counts: Counter[str] = Counter()
        self.num_restarts = 0
        self.error: StorageError | OSError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for spell in self._spells:
                if self._over.is_set():
                    return
                self.counts[spell.kind] += 1
                with self._making(spell):
                    self._over.wait(spell.duration_s)
        except (StorageError, OSError) as error:
            self.error = error

    @contextlib.contextmanager
    def _making(self, spell: Spell) -> Iterator[None]:
        kind = spell.kind
        if kind in _RATES:
            self._faults.set_rates(replace(_RATES[kind], seed=spell.seed))
        elif kind in _TOXICS:
            self._change(lambda: _poison(self._network, *_TOXICS[kind]))
        elif kind == "network_away":
            self._change(lambda: self._over.wait(_FREEZE_S))
        elif kind == "server_frozen":
            self._mortal.freeze()
            self._over.wait(_FREEZE_S)
            self._mortal.thaw()
        elif kind == "server_killed":
            self._mortal.restart()
        elif kind != "calm":
            _spoil(self._cache, kind, random.Random(spell.seed))
        yield
        if kind in _RATES:
            self._faults.set_rates(Rates())
        elif kind in _TOXICS:
            self._change(lambda: _cleanse(self._network))

    def _change(self, change: Callable[[], object]) -> None:
        """Changes the network while no connection is open: toxiproxy may wait for a stalled one for ever."""
        for _ in range(_TRIES):
            with contextlib.suppress(ConnectionFailed):
                self._network.disable()
                change()
                self._network.enable()
                return
            self.num_restarts += 1
            self._network.restart()
        raise ConnectionFailed("toxiproxy does not answer, however often it is started", url=self._network.endpoint_url)


def _poison(network: Toxiproxy, name: str, toxicity: float, attributes: dict[str, int]) -> None:
    _cleanse(network)
    network.add_toxic("weather", name, stream="downstream", toxicity=toxicity, **attributes)


def _cleanse(network: Toxiproxy) -> None:
    if "weather" in network.toxics():
        network.remove_toxic("weather")


def _spoil(cache: Path, kind: str, rng: random.Random) -> None:
    """Does to a cache folder what drives and people do."""
    if kind == "cache_deleted":
        shutil.rmtree(cache, ignore_errors=True)
        return
    files = [path for path in sorted(cache.rglob("*")) if path.is_file() and not path.is_symlink()]
    for path in rng.sample(files, min(len(files), 3)):
        # Evicted meanwhile, one that is not ours to write, or an empty one.
        with contextlib.suppress(OSError, ValueError), path.open("r+b") as file:
            size = path.stat().st_size
            if kind == "cache_truncated":
                file.truncate(rng.randrange(size + 1))
                continue
            with mmap(file.fileno(), size) as data:
                for _ in range(min(size, 64)):
                    data[rng.randrange(size)] ^= 0xFF
