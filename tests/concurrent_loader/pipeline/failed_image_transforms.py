"""Transforms for worker processes in the tests of failed images, importable by name."""

from __future__ import annotations

from typing import Any

import torch
from torchcodec.decoders import decode_jpeg


def keep(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def fail(sample: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("as it should")


def labels(samples: list[dict[str, Any]]) -> list[int]:
    return [int(sample["label"]) for sample in samples]


def pop_labels(samples: list[dict[str, Any]]) -> list[int]:
    return [int(sample.pop("label")) for sample in samples]


def decode(data: Any) -> torch.Tensor:
    return decode_jpeg(bytes(data))[:, :8, :8].contiguous()
