"""The bucket against the local drive, with processes that only say what they were asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from benchmarks import remote_vs_local
from benchmarks.bucket import Bucket
from benchmarks.catalogue import BENCHMARKS, missing_keys
from benchmarks.peers import turns
from benchmarks.peers.figures import expected_digest, image_digest
from benchmarks.peers.job import Fetched, Job, Outcome, paths
from benchmarks.remote_vs_local import Load, figures_of, run_benchmark
from benchmarks.report_page import Results, report

FETCHED = Fetched(gets=7, num_bytes=1010, dataset_bytes=1000, client="S3Store")
EPOCH = Outcome(numbers=list(range(100)), build_s=1.0, epoch_s=3.0, first_batch_s=1.2, waiting_s=0.5, cpu_s=3.0)


class FakeSides:
    """Stands in for the processes: remembers what was asked, and whether the cache was there."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool, bool]] = []
        self.wrong_digest = ""

    def run_job(self, python: str, job: Job, *, deadline_s: float) -> tuple[Outcome, int]:
        name = "shards" if job.peer == "ours" else "local"
        warm = False
        if job.cache_dir is not None:
            left = Path(job.cache_dir, "left")
            warm = left.exists()
            left.touch()
        self.asked.append((name, job.train, warm))
        digests = [image_digest(path.read_bytes(), number) for number, path in enumerate(paths(job.photos))]
        numbers = list(range(len(digests)))
        outcome = structs.replace(
            EPOCH, numbers=numbers, digest=self.wrong_digest or expected_digest(numbers, digests),
            epoch_s=2.0 if name == "local" or warm else 2.25, fetched=FETCHED if name == "shards" else None,
        )  # fmt: skip
        return outcome, 0


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> FakeSides:
    @contextlib.contextmanager
    def fake_bucket(data_dir: Path, *, latency_ms: int) -> Iterator[Bucket]:
        yield Bucket(
            name="demo", direct={}, remote={}, server="fake", latency="31 ms", latency_ms=31.0, latency_applied=True
        )

    fake = FakeSides()
    monkeypatch.setattr(remote_vs_local, "open_bucket", fake_bucket)
    monkeypatch.setattr(turns, "run_job", fake.run_job)
    monkeypatch.setattr(remote_vs_local, "write_shards", lambda photos, url, options: None)
    return fake


def run(name: str, folder: Path) -> dict[str, Any]:
    load = Load(num_photos=10, raw_bytes=1_000_000, num_rounds=3, data=folder)
    return run_benchmark(name, load, Console(quiet=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "none"])
def test_the_json_has_the_agreed_keys(tmp_path: Path, sides: FakeSides, name: str) -> None:
    figures = run(name, tmp_path)
    keys = next(each.keys for each in BENCHMARKS if each.name == f"remote_vs_local.{name}")
    assert missing_keys({**figures, "machine": {}, "versions": {}}, keys) == []
    assert f"](remote_vs_local.{name}.json)" in report(Results(tmp_path, {f"remote_vs_local.{name}": figures}))
    assert figures["latency_ms"] == 31.0
    for part in ("training",) if name == "train" else ("raw", "decoded"):
        assert (figures[part]["cold_ratio"], figures[part]["warm_ratio"], figures[part]["rounds"]) == (0.8, 1.0, 3)


def test_sides_alternate_and_cold_means_no_cache(tmp_path: Path, sides: FakeSides) -> None:
    run("train", tmp_path)
    local, cold, warm = ("local", True, False), ("shards", True, False), ("shards", True, True)
    assert sides.asked == [local, cold, warm, cold, warm, local, local, cold, warm]
    assert not (tmp_path / "benchmark-cache").exists()


def test_other_bytes_than_the_files_are_an_error(tmp_path: Path, sides: FakeSides) -> None:
    sides.wrong_digest = "wrong"
    with pytest.raises(ValueError, match="wrong bytes"):
        run("none", tmp_path)


def test_figures_pair_the_rounds_and_start_with_the_request_for_a_batch() -> None:
    # The machine slows down by 4 between the rounds; within each round cold takes twice local's time, warm the same.
    local = [structs.replace(EPOCH, epoch_s=1.0 + seconds) for seconds in (1.0, 2.0, 4.0)]
    cold = [structs.replace(each, epoch_s=2 * each.epoch_s - 1.0, fetched=FETCHED) for each in local]
    warm = [structs.replace(each, fetched=FETCHED) for each in local]
    made = figures_of(local, cold, warm)
    assert (made["cold_ratio"], made["warm_ratio"], made["spread"]["cold_ratio"]) == (0.5, 1.0, [0.5, 0.5])
    assert (made["local_img_s"], made["cold_img_s"], made["spread"]["local_img_s"]) == (50.0, 25.0, [25.0, 100.0])
    assert (made["first_batch_s"], made["waiting_share_local"], made["cpu_s_per_1000"]) == (0.2, 0.25, 30.0)
    assert (made["bytes_ratio"], made["gets"], made["client"], made["rounds"]) == (1.01, 7, "S3Store", 3)
    with pytest.raises(ValueError, match="zip"):
        figures_of(local[:2], cold, warm)
