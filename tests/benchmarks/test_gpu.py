"""The benchmark of the device stage: all of it that needs no GPU, and a short run where there is one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import NO_GPU, Run, figures_of, main, measure_decoding, time_steps
from benchmarks.photos import make_photos

sys.path.append(str(Path(__file__).parent.parent / "concurrent_loader" / "device"))
from fake_device import FakeDevice


class Event:
    """Of a device that does things one after another, by a clock of its own."""

    now_ms = 0.0

    def record(self):
        self.at_ms = Event.now_ms

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


def test_the_device_s_waiting_is_what_lies_between_steps(monkeypatch):
    times = iter([10.0, 11.0, 15.0])  # began, first batch, end
    monkeypatch.setattr(gpu, "perf_counter", lambda: next(times))
    monkeypatch.setattr(Event, "now_ms", 0.0)

    def batches():
        for wait_ms in (0, 200, 300):
            Event.now_ms += wait_ms
            yield torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)

    def step(images, labels):
        Event.now_ms += 1000

    finished = []
    run = time_steps(batches(), step, make_event=Event, finish=lambda: finished.append(True))
    assert (run.num_samples, run.wall_s, run.first_batch_s) == (12, 5.0, 1.0)
    assert run.gpu_wait_s == pytest.approx(1.5)  # the first batch, and 0.2 and 0.3 s
    assert finished


def test_figures_are_medians_and_ratios_within_rounds():
    runs = {
        "synthetic": [Run(1000, 1.0, 0.0, 0.1, 0.0), Run(1000, 2.0, 0.0, 0.1, 0.0), Run(1000, 1.0, 0.0, 0.1, 0.0)],
        "bucket": [Run(1000, 1.1, 0.022, 0.2, 0.5), Run(1000, 2.0, 0.02, 0.2, 0.4), Run(1000, 1.25, 0.05, 0.2, 0.3)],
        "torch": [Run(1000, 4.0, 3.0, 1.1, 1.0)] * 3,
    }
    figures = figures_of(runs)
    assert [row["side"] for row in figures["rows"]] == ["synthetic", "bucket", "torch"]
    bucket = figures["rows"][1]
    assert bucket == {
        "side": "bucket", "images_s": 800.0, "gpu_wait_share": 0.02, "cpu_s_per_1000": 0.2, "first_batch_s": 0.4,
    }  # fmt: skip
    assert figures["ratio_to_synthetic"] == pytest.approx(0.9091)
    assert figures["cpu_ratio_to_torch"] == pytest.approx(0.1)
    assert figures["gpu_wait_share"] == 0.02
    assert figures["targets"].keys() <= figures.keys()


@pytest.mark.slow
def test_decoding_is_measured_by_path_and_size(few_photos):
    fake = FakeDevice()
    load = gpu.Load((1, 2), 1, 64, 1, 2, 1)
    rows = measure_decoding(few_photos, load, fake)
    assert [(row["what"], row["path"], row["batch_size"]) for row in rows] == [
        (what, path, size)
        for size in (1, 2)
        for what, path in (("decode", "hardware"), ("decode", "software"), ("stage", "hardware"))
    ]
    assert all(row["images_s"] > 0 for row in rows)
    assert not fake.wrong


def test_a_training_step_learns_without_waiting():
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, stride=8), torch.nn.Flatten(), torch.nn.Linear(64, 2))
    training = gpu.Training(network, torch.device("cpu"))
    before = [each.detach().clone() for each in training._network.parameters()]
    training.step(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1]))
    assert any(not torch.equal(one, other) for one, other in zip(before, training._network.parameters(), strict=True))


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--quick", "--json", str(tmp_path / "gpu.json")]) == NO_GPU
    assert capsys.readouterr().err == "benchmarks.gpu: no CUDA device can be used here; nothing was measured\n"
    assert not (tmp_path / "gpu.json").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_short_run_has_all_figures(tmp_path):
    file = tmp_path / "gpu.json"
    assert main(["--quick", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert figures["device"] == torch.cuda.get_device_name()
    assert len(figures["decode"]) == 3
    assert [row["side"] for row in figures["training"]["rows"]] == ["synthetic", "bucket", "torch"]
    assert figures["training"]["targets"].keys() <= figures["training"].keys()


@pytest.fixture(scope="module")
def few_photos(tmp_path_factory):
    photos = make_photos(tmp_path_factory.mktemp("photos"), count=4)
    return [path.read_bytes() for path in photos.paths()]
