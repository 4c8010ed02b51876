from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import remote_vs_local
from benchmarks.bucket import Bucket
from benchmarks.harness import Epoch, Request
from benchmarks.remote_vs_local import main, parse_options, run_benchmark

PROMISED_KEYS = {
    "local_img_s",
    "cold_img_s",
    "warm_img_s",
    "cold_ratio",
    "warm_ratio",
    "first_batch_s",
    "gets",
    "bytes_ratio",
    "cpu_s_per_1000",
    "peak_rss_mb",
    "client",
}


class FakeSides:
    """Stands in for the processes: remembers what was asked, and whether the cache was there."""

    def __init__(self, *, wrong_digest: str | None = None) -> None:
        self.asked: list[tuple[str, str, bool]] = []
        self.wrong_digest = wrong_digest

    def run_epoch(self, request: Request) -> Epoch:
        warm = request.cache_dir is not None and Path(request.cache_dir).exists()
        if request.cache_dir is not None:
            Path(request.cache_dir).mkdir(exist_ok=True)
        self.asked.append((request.step, request.side, warm))
        digest = "right" if request.step == "raw" else None
        if request.step == "raw" and request.side == "shards" and self.wrong_digest:
            digest = self.wrong_digest
        return Epoch(
            num_samples=100,
            build_s=0.1,
            epoch_s=1.0 if request.side == "folder" or warm else 1.25,
            first_batch_s=0.2,
            waiting_s=0.1,
            num_gets=7,
            num_bytes=1000,
            dataset_bytes=1000,
            cpu_s=1.0,
            peak_rss_mb=500.0,
            rss_added_mb=50.0,
            first_loss=None,
            last_loss=None,
            accuracy=None,
            class_counts=[10] * 10,
            digest=digest,
            client="CloudStore" if request.side == "shards" else None,
            timeline=[(1.0, 100)],
        )


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> FakeSides:
    @contextlib.contextmanager
    def fake_bucket(data_dir: Path, *, latency_ms: int) -> Iterator[Bucket]:
        yield Bucket(
            name="demo",
            direct={},
            remote={},
            server="fake",
            latency=f"{latency_ms} ms",
            latency_ms=31.0,
            latency_applied=latency_ms > 0,
            processes=(),
        )

    fake = FakeSides()
    monkeypatch.setattr(remote_vs_local, "open_bucket", fake_bucket)
    monkeypatch.setattr(remote_vs_local, "run_epoch", fake.run_epoch)
    monkeypatch.setattr(remote_vs_local, "has_shards", lambda photos, url, options: False)
    monkeypatch.setattr(remote_vs_local, "ingest", lambda photos, url, options: None)
    return fake


def arguments(tmp_path: Path, *more: str) -> list[str]:
    return ["--data", str(tmp_path / "data"), "--images", "10", "--rss-dataset", "1MB", "--repeats", "3", *more]


@pytest.mark.slow
def test_the_json_has_the_agreed_keys_for_every_step(tmp_path: Path, sides: FakeSides) -> None:
    file = tmp_path / "figures.json"

    assert main(arguments(tmp_path, "--json", str(file))) == 0

    figures = json.loads(file.read_text())
    assert set(figures) >= {"machine", "versions", "latency_ms", "training", "raw", "decoded"}
    assert figures["latency_ms"] == 31.0
    for step in ("training", "raw", "decoded"):
        assert set(figures[step]) >= PROMISED_KEYS
        assert figures[step]["cold_ratio"] == 0.8
        assert figures[step]["warm_ratio"] == 1.0
        assert figures[step]["rounds"] == 3
    assert "rss_added_mb" in figures["raw"]


def test_sides_alternate_and_cold_means_no_cache(tmp_path: Path, sides: FakeSides) -> None:
    run_benchmark(parse_options(arguments(tmp_path, "--step", "train")), Console(quiet=True))

    local, cold, warm = ("train", "folder", False), ("train", "shards", False), ("train", "shards", True)
    assert sides.asked == [local, cold, warm, cold, warm, local, local, cold, warm]
    assert not (tmp_path / "data" / "benchmark-cache").exists()


def test_only_the_steps_that_were_asked_for_run(tmp_path: Path, sides: FakeSides) -> None:
    figures = run_benchmark(parse_options(arguments(tmp_path, "--step", "none")), Console(quiet=True))
    assert "training" not in figures
    assert {step for step, _, _ in sides.asked} == {"raw", "decoded"}


def test_without_latency_the_figures_say_so(tmp_path: Path, sides: FakeSides) -> None:
    figures = run_benchmark(
        parse_options(arguments(tmp_path, "--step", "train", "--latency", "0")), Console(quiet=True)
    )
    assert figures["latency_ms"] == 0.0


def test_other_bytes_than_the_files_are_an_error(tmp_path: Path, sides: FakeSides) -> None:
    sides.wrong_digest = "wrong"
    with pytest.raises(ValueError, match="same images"):
        run_benchmark(parse_options(arguments(tmp_path, "--step", "none")), Console(quiet=True))


@pytest.mark.parametrize("wrong", [["--repeats", "0"], ["--images", "0"], ["--latency", "-1"], ["--step", "some"]])
def test_arguments_that_cannot_work_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(wrong)
    assert wrong[0] in capsys.readouterr().err
