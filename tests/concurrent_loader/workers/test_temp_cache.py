from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from concurrent_loader.workers.temp_cache import TempCache


def make_old(folder: Path) -> None:
    os.utime(folder, (1_000_000_000, 1_000_000_000))


def test_is_private_and_goes(tmp_path: Path) -> None:
    gc.collect()  # what earlier tests left closes now, not meanwhile
    before = len(os.listdir("/proc/self/fd"))
    cache = TempCache(tmp_path)
    assert cache.path.parent == tmp_path
    assert cache.path.stat().st_mode & 0o777 == 0o700
    (cache.path / "something").touch()
    cache.remove()
    cache.remove()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_sweeps_what_the_dead_left_and_nothing_else(tmp_path: Path) -> None:
    alive, dead, headless, young = (TempCache(tmp_path) for _ in range(4))
    for cache in (dead, headless, young):
        os.close(cache._lock)  # as the end of its process does
    (headless.path / "owner").unlink()
    foreign = tmp_path / "concurrent-loader-demo"
    foreign.mkdir()
    for folder in (alive.path, dead.path, headless.path, foreign):
        make_old(folder)
    newest = TempCache(tmp_path)
    assert set(tmp_path.iterdir()) == {alive.path, young.path, foreign, newest.path}
    alive.remove()
    newest.remove()


def test_does_not_follow_links(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "owner").touch()
    make_old(target)
    link = tmp_path / "concurrent-loader-workers-x"
    link.symlink_to(target)
    os.utime(link, (1_000_000_000, 1_000_000_000), follow_symlinks=False)
    TempCache(tmp_path).remove()
    assert (target / "owner").exists()
    assert link.is_symlink()


def test_says_when_it_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        TempCache(tmp_path / "nowhere")
