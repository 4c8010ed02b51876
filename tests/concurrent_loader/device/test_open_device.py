from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_device import FakeDevice

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.device import device_codecs, has_stage, resolve_device
from concurrent_loader.storage.errors import ConfigurationError

UNTOUCHED = """
import sys
import torch

def refuse(*args, **kwargs):
    raise AssertionError("CUDA was touched")

for name in ("is_available", "device_count", "current_device", "init", "_lazy_init", "Stream", "Event", "synchronize"):
    setattr(torch.cuda, name, refuse)

import io
from PIL import Image
from concurrent_loader import ConcurrentDataLoader, RandomResizedCrop, ShardDataset
from concurrent_loader.storage import ShardWriter

buffer = io.BytesIO()
Image.new("RGB", (64, 48), (1, 2, 3)).save(buffer, "JPEG")
with ShardWriter("memory://here", columns={"image": "jpeg", "label": "int64"}) as writer:
    for number in range(8):
        writer.write({"image": buffer.getvalue(), "label": number})
for device in (None, "cpu", torch.device("cpu")):
    with ShardDataset("memory://here") as dataset:
        loader = ConcurrentDataLoader(dataset, batch_size=4, decode={"image": RandomResizedCrop(32)}, device=device)
        assert [batch["image"].shape for batch in loader] == [(4, 3, 32, 32)] * 2
        assert loader.stats.wait_device_s == 0
assert not torch.cuda.is_initialized()
assert "concurrent_loader.device.cuda" not in sys.modules
assert "triton" not in sys.modules
maps = open("/proc/self/maps").read() if sys.platform == "linux" else ""
assert "libcuda.so" not in maps
print("untouched")
"""


@pytest.mark.processes
def test_nothing_of_cuda_is_touched_unasked() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", UNTOUCHED],
        capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    assert done.stdout == "untouched\n", done.stderr


def test_cpu_and_none_are_taken_as_they_are() -> None:
    assert resolve_device(None) is None
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("meta") == torch.device("meta")
    assert not has_stage(None)
    assert not has_stage(torch.device("cpu"))
    assert has_stage(torch.device("cuda", 1))
    assert device_codecs(torch.device("cpu")) == ()


@pytest.mark.parametrize("device", ["gpu", "cuda:first", 0.5])
def test_what_is_no_device_is_said_at_once(device: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"name of a torch device.*'cpu', 'cuda'") as caught:
        resolve_device(device)
    assert caught.value.got == device


def test_the_device_is_closed_when_it_has_said_what_it_decodes(cuda: FakeDevice) -> None:
    assert device_codecs(torch.device("cuda", 0)) == cuda.codecs
    assert cuda.closed == 1


def test_no_gpu_is_said_when_the_loader_is_made(image_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with ShardDataset(image_url) as dataset, pytest.raises(ConfigurationError, match="no CUDA device can be used here"):
        ConcurrentDataLoader(dataset, batch_size=4, device="cuda")


def test_memory_is_not_page_locked_for_nobody(image_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with ShardDataset(image_url) as dataset:
        for device in (None, "cpu"):
            with pytest.raises(ConfigurationError, match="pin_memory needs a GPU"):
                ConcurrentDataLoader(dataset, batch_size=4, device=device, pin_memory=True)
        assert len(list(ConcurrentDataLoader(dataset, batch_size=40, pin_memory=False))) == 1


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_available=lambda: True, current_device=lambda: 1, device_count=lambda: 2)
    for name, value in vars(cuda).items():
        monkeypatch.setattr(torch.cuda, name, value)
    assert resolve_device("cuda") == torch.device("cuda", 1)
    assert resolve_device("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(ConfigurationError, match="CUDA device does not exist") as caught:
        resolve_device("cuda:2")
    assert "cuda:1" in str(caught.value)
