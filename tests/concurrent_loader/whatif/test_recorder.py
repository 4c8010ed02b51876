"""Recordings of real loaders, and the command that reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from concurrent_loader import ConcurrentDataLoader, ConfigurationError, ShardDataset
from concurrent_loader.cli.app import app
from concurrent_loader.storage import ShardWriter
from concurrent_loader.whatif.run_trace import MAX_STEPS, RunTrace
from concurrent_loader.whatif.simulation import Scenario, predict

SAMPLES = 96


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("whatif") / "numbers")
    with ShardWriter(folder, columns={"data": "bytes", "number": "int64"}, shard_size="64KiB") as writer:
        for number in range(SAMPLES):
            writer.write({"data": np.random.default_rng(number).bytes(4_000), "number": number})
    return folder


@pytest.fixture(scope="module")
def recording(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("recording") / "run.rec"
    with ShardDataset(url, in_flight=4) as dataset:
        loader = ConcurrentDataLoader(dataset, batch_size=8, shuffle=True, num_threads=2)
        next(iter(loader))  # what was loaded before does not count
        with loader.record(file):
            assert sum(len(batch["data"]) for batch in loader) == SAMPLES
    return file


def test_holds_what_the_epoch_read(recording: Path) -> None:
    trace = RunTrace.load(recording)
    assert (trace.num_batches, trace.num_samples, trace.step_samples) == (12, SAMPLES, [8] * 12)
    assert (trace.num_threads, trace.in_flight, trace.by_object) == (2, 4, False)
    assert sorted({unit for units in trace.step_units for unit in units}) == list(range(len(trace.unit_bytes)))
    assert len(trace.unit_bytes) > 4
    assert 0 < trace.thread_cpu_s <= trace.process_cpu_s
    assert 4_000 < trace.sample_bytes < 4_200


def test_samples_that_are_transformed_have_no_size(url: str, tmp_path: Path) -> None:
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(dataset, batch_size=8, transform=dict)
        with loader.record(tmp_path / "run.rec"):
            next(iter(loader))
    assert RunTrace.load(tmp_path / "run.rec").sample_bytes == 0


def test_an_epoch_that_was_left_early_is_recorded_up_to_there(url: str, tmp_path: Path) -> None:
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(dataset, batch_size=8)
        with loader.record(tmp_path / "run.rec"):
            for number, _ in enumerate(loader):
                if number == 2:
                    break
    assert len(RunTrace.load(tmp_path / "run.rec").step_units) == 3 < MAX_STEPS


def test_nothing_recorded_is_an_error(url: str, tmp_path: Path) -> None:
    with (
        ShardDataset(url) as dataset,
        pytest.raises(ConfigurationError, match="nothing was recorded"),
        ConcurrentDataLoader(dataset).record(tmp_path / "run.rec"),
    ):
        pass
    assert not (tmp_path / "run.rec").exists()


@pytest.mark.processes
def test_workers_are_recorded(url: str, tmp_path: Path) -> None:
    with ShardDataset(url, in_flight=4) as dataset:
        loader = ConcurrentDataLoader(dataset, batch_size=8, num_workers=2, num_threads=2)
        with loader.record(tmp_path / "run.rec"):
            assert sum(len(batch["data"]) for batch in loader) == SAMPLES
    trace = RunTrace.load(tmp_path / "run.rec")
    assert (trace.num_samples, trace.num_threads) == (SAMPLES, 2)
    assert trace.num_gets >= len(trace.unit_bytes)
    assert trace.num_bytes >= sum(trace.unit_bytes)
    assert 0 < trace.thread_cpu_s <= trace.process_cpu_s
    assert predict(trace, Scenario.of(trace)).samples_s > 0


class TestCommand:
    def test_answers_in_words(self, recording: Path) -> None:
        found = CliRunner().invoke(
            app, ["whatif", str(recording), "--accelerators", "2", "--step-ms", "50", "--cache", "1"]
        )
        assert found.exit_code == 0, found.output
        assert "bound by:  accelerators" in found.output
        assert "predicted: 3" in found.output  # 2 × 8 samples in 50 ms

    def test_answers_in_json(self, recording: Path) -> None:
        found = CliRunner().invoke(app, ["whatif", str(recording), "--cores", "16", "--cache", "100%", "--json"])
        told = json.loads(found.output)
        assert told["scenario"]["cores"] == 16
        assert told["prediction"]["samples_s"] > 0

    @pytest.mark.parametrize("share", ["150%", "half", "-1"])
    def test_a_share_is_checked(self, recording: Path, share: str) -> None:
        assert CliRunner().invoke(app, ["whatif", str(recording), f"--cache={share}"]).exit_code == 2

    def test_other_files_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "run.rec").write_text("no recording")
        assert CliRunner().invoke(app, ["whatif", str(tmp_path / "run.rec")]).exit_code == 2
