from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.append(str(Path(__file__).parent))
from fake_device import FakeDevice

from concurrent_loader.device import open_device


@pytest.fixture
def fake() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, fake: FakeDevice) -> FakeDevice:
    """The device that loaders get where they ask for CUDA."""
    library = SimpleNamespace(
        resolve_cuda=lambda device: torch.device("cuda", device.index or 0), CudaBackend=lambda device, *, pinned: fake
    )
    monkeypatch.setattr(open_device, "_cuda", lambda: library)
    return fake


@pytest.fixture(scope="session")
def encode() -> Callable[..., bytes]:
    """Makes an encoded image of smooth colors: (number, size, kind, mode, options of Pillow)."""

    def make(
        number: int = 0, size: tuple[int, int] = (40, 30), kind: str = "JPEG", mode: str = "RGB", **options: Any
    ) -> bytes:
        small = np.random.default_rng(number).integers(0, 256, (3, 4, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).convert(mode)
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        return buffer.getvalue()

    return make
