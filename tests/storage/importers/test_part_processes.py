from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from concurrent_loader.storage.errors import ConfigurationError, CorruptData, StorageError
from concurrent_loader.storage.importers import ImageFolder
from concurrent_loader.storage.importers.ingest import IngestProgress, ingest
from concurrent_loader.storage.importers.part_processes import PartTarget, _write_run
from concurrent_loader.storage.importers.parts_commit import unfinished_imports
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.stores import open_store

NUM_FILES = 100
SHARD = "4KiB"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for number in range(NUM_FILES):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        path = root / "ab"[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return root


@pytest.fixture(scope="module")
def digest(images: Path) -> str:
    """Digest of the same import in one process."""
    return ingest(ImageFolder(open_store(images)), "memory://one-process", shard_size=SHARD).manifest.digest


@pytest.mark.processes
def test_the_data_set_does_not_depend_on_the_number_of_processes(images: Path, digest: str, tmp_path: Path) -> None:
    seen: list[IngestProgress] = []
    report = ingest(
        ImageFolder(open_store(images)), tmp_path / "two", shard_size=SHARD, workers=2, on_progress=seen.append
    )
    assert report.manifest.digest == digest
    assert (seen[0].num_done, seen[-1].num_done, seen[-1].num_total) == (0, NUM_FILES, NUM_FILES)
    assert not (tmp_path / "two" / "unfinished").exists() or not list((tmp_path / "two" / "unfinished").rglob("*.json"))


@pytest.mark.processes
def test_the_error_of_a_part_is_raised(images: Path, tmp_path: Path) -> None:
    (tmp_path / "bad" / "a").mkdir(parents=True)
    for path in images.glob("*/*.jpg"):
        (tmp_path / "bad" / "a" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "bad" / "a" / "050.jpg").write_bytes(b"\xff\xd8\xff damaged")
    with pytest.raises(CorruptData) as caught:
        ingest(ImageFolder(open_store(tmp_path / "bad")), tmp_path / "out", shard_size=SHARD, workers=2)
    assert caught.value.key == "a/050.jpg"
    assert not (tmp_path / "out" / "manifests").exists()


class Odd(Exception):
    """Is pickled, but not unpickled."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


@pytest.mark.parametrize(("error", "kind"), [(Odd(3, "no such token"), StorageError), (KeyError("x"), KeyError)])
def test_an_error_that_cannot_be_unpickled_comes_in_words(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    """The pool would take it for the death of the worker, again and again."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(PartTarget, "write_run", fail)
    with pytest.raises(kind) as caught:
        _write_run(PartTarget("memory://x"), [])
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert str(error) in str(caught.value)


@pytest.mark.processes
def test_the_error_of_the_earliest_part_is_raised(images: Path, tmp_path: Path) -> None:
    (tmp_path / "bad" / "a").mkdir(parents=True)
    for path in images.glob("*/*.jpg"):
        damaged = int(path.stem) % 10 == 0
        (tmp_path / "bad" / "a" / path.name).write_bytes(b"\xff\xd8\xff damaged" if damaged else path.read_bytes())
    keys = set()
    for workers in (1, 2, 3):
        with pytest.raises(CorruptData) as caught:
            ingest(ImageFolder(open_store(tmp_path / "bad")), tmp_path / "out", shard_size=SHARD, workers=workers)
        keys.add(caught.value.key)
    assert len(keys) == 1


@pytest.mark.processes
def test_the_calling_process_is_one_of_the_workers(images: Path, digest: str, tmp_path: Path) -> None:
    num_children: list[int] = []

    def count(now: IngestProgress) -> None:
        children = psutil.Process().children()
        num_children.append(sum("spawn_main" in " ".join(_command_line(child)) for child in children))

    report = ingest(ImageFolder(open_store(images)), tmp_path / "x", shard_size=SHARD, workers=3, on_progress=count)
    assert report.manifest.digest == digest
    assert max(num_children) == 2


@pytest.mark.processes
def test_killed_processes_are_replaced(images: Path, digest: str, tmp_path: Path) -> None:
    rng = random.Random(3)
    num_killed = 0
    ended = threading.Event()

    def kill() -> None:
        nonlocal num_killed
        while not ended.wait(rng.random() / 2) and num_killed < 3:
            workers = [child for child in psutil.Process().children() if "spawn_main" in " ".join(_command_line(child))]
            if workers:
                rng.choice(workers).kill()
                num_killed += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for number in range(4):
            url = tmp_path / str(number)
            report = ingest(ImageFolder(open_store(images)), url, shard_size=SHARD, workers=2)
            assert report.manifest.digest == digest
    finally:
        ended.set()
        killer.join()
    assert num_killed


@pytest.mark.long
def test_processes_killed_fifty_times(images: Path, digest: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    for number in range(50):
        url = tmp_path / str(number)
        script = f"""
from concurrent_loader.storage.importers import ImageFolder
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.stores import open_store
if __name__ == "__main__":
    ingest(ImageFolder(open_store({str(images)!r})), {str(url)!r}, shard_size={SHARD!r}, workers=2)
"""
        program = tmp_path / "program.py"
        program.write_text(script)
        process = subprocess.Popen([sys.executable, str(program)], cwd=Path(__file__).parents[3])
        try:
            process.wait(timeout=0.3 + 3 * rng.random())
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        manifests = list(url.glob("manifests/*.clm"))
        if manifests:
            found = asyncio.run(load_manifest(open_store(url)))
        else:
            found = ingest(ImageFolder(open_store(images)), url, shard_size=SHARD).manifest
        assert found.digest == digest


@pytest.mark.processes
def test_an_interrupt_leaves_a_state_to_continue(images: Path, digest: str, tmp_path: Path) -> None:
    url = tmp_path / "interrupted"
    script = f"""
import os, signal
from concurrent_loader.storage.importers import ImageFolder
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.stores import open_store

def stop(now):
    if now.num_done > {NUM_FILES // 2}:
        os.kill(os.getpid(), signal.SIGINT)

if __name__ == "__main__":
    ingest(ImageFolder(open_store({str(images)!r})), {str(url)!r}, shard_size={SHARD!r}, workers=2, on_progress=stop)
"""
    program = tmp_path / "program.py"
    program.write_text(script)
    result = subprocess.run(
        [sys.executable, str(program)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode in (-signal.SIGINT, 130, 1), result.stderr
    assert "KeyboardInterrupt" in result.stderr
    ((done, of),) = unfinished_imports(url).values()
    assert 0 < done <= of
    assert ingest(ImageFolder(open_store(images)), url, shard_size=SHARD).manifest.digest == digest


@pytest.mark.parametrize("workers", [0, True, "two"])
def test_a_number_of_workers_that_is_none(images: Path, tmp_path: Path, workers: object) -> None:
    with pytest.raises(ConfigurationError, match="workers"):
        ingest(ImageFolder(open_store(images)), tmp_path / "x", workers=workers)  # type: ignore[arg-type]


def test_an_address_without_ray(images: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="engine='ray'"):
        ingest(ImageFolder(open_store(images)), tmp_path / "x", address="auto")


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
