"""The weather of the soak test: what comes, and that it passes."""

from __future__ import annotations

import random
from itertools import islice

from benchmarks.weather import KINDS, Weather, _spoil, forecast
from concurrent_loader.storage.errors import ConnectionFailed


def test_every_kind_comes_in_every_round():
    spells = list(islice(forecast(3, shortest_s=1, longest_s=2), 2 * len(KINDS)))
    assert spells == list(islice(forecast(3, shortest_s=1, longest_s=2), 2 * len(KINDS)))
    first, second = ([spell.kind for spell in half] for half in (spells[: len(KINDS)], spells[len(KINDS) :]))
    assert set(first) == set(second) == set(KINDS)
    assert first != second
    assert all(1 <= spell.duration_s <= 2 for spell in spells)


class Everything:
    """Stands for both proxies and the server; remembers what it was told."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.told.append(name)

    def toxics(self):
        left = self.told.count("add_toxic") - self.told.count("remove_toxic")
        return ["weather"] * left


def make(tmp_path, world, spells):
    return Weather(spells, faults=world, network=world, mortal=world, cache=tmp_path)


def test_what_begins_ends(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 100)
    world = Everything()
    spells = list(islice(forecast(0, shortest_s=0.0, longest_s=0.0001), len(KINDS)))
    weather = make(tmp_path, world, iter(spells))
    weather._over.wait = lambda timeout: None
    with weather:
        weather._thread.join()
    assert weather.error is None
    assert weather.counts == dict.fromkeys(KINDS, 1)
    for begin, end in (("add_toxic", "remove_toxic"), ("disable", "enable"), ("freeze", "thaw")):
        assert world.told.count(begin) == world.told.count(end) > 0
    assert world.told.count("set_rates") % 2 == 0


def test_a_proxy_that_is_stuck_is_started_anew(tmp_path):
    class Stuck(Everything):
        def add_toxic(self, *args, **kwargs):
            self.told.append("add_toxic")
            if "restart" not in self.told:
                raise ConnectionFailed("no answer, although it was done")

        def restart(self):
            self.told = ["restart"]

    world = Stuck()
    spells = islice(forecast(0, shortest_s=0.0, longest_s=0.0001), len(KINDS))
    weather = make(tmp_path, world, iter([spell for spell in spells if spell.kind == "latency"]))
    with weather:
        weather._thread.join()
    assert weather.error is None
    assert weather.num_restarts == 1
    assert world.told == ["restart", "disable", "add_toxic", "enable", "disable", "remove_toxic", "enable"]


def test_a_world_that_is_gone_is_said(tmp_path):
    class Gone(Everything):
        def __getattr__(self, name):
            raise ConnectionFailed("gone")

    weather = make(tmp_path, Gone(), forecast(0, shortest_s=0.001, longest_s=0.001))
    with weather:
        weather._thread.join()
    assert isinstance(weather.error, ConnectionFailed)


def test_files_are_spoilt(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    file = cache / "file"
    _spoil(cache, "cache_flipped", random.Random(0))
    file.write_bytes(bytes(1000))
    _spoil(cache, "cache_flipped", random.Random(0))
    assert len(file.read_bytes()) == 1000
    assert file.read_bytes() != bytes(1000)
    _spoil(cache, "cache_truncated", random.Random(0))
    assert len(file.read_bytes()) < 1000
    _spoil(cache, "cache_deleted", random.Random(0))
    _spoil(cache, "cache_deleted", random.Random(0))
    assert not cache.exists()
