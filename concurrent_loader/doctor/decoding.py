"""What turns bytes into pictures on this machine, and how fast: a GPU if there is one, the decoder, one core."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from concurrent_loader.doctor.finding import Finding, Level

__all__ = ["Gpu", "find_gpus", "has_nvidia_device", "judge_decoder", "judge_gpus", "measure_decoding", "sample_jpeg"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device that torch can use."""

    name: str
    memory_bytes: int


def find_gpus() -> tuple[Gpu, ...]:
    """The devices that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return ()
    found = (torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count()))
    return tuple(Gpu(device.name, device.total_memory) for device in found)


def has_nvidia_device() -> bool:
    """Whether the driver shows a device, whatever torch makes of it."""
    return Path("/dev/nvidiactl").exists()


def judge_gpus(gpus: tuple[Gpu, ...], *, has_device: bool) -> Finding:
    """Judges devices: none is no failure, one that torch cannot use nearly is."""
    if gpus:
        names = ", ".join(f"{gpu.name} ({gpu.memory_bytes // _MIB:,} MiB)" for gpu in gpus)
        return Finding("gpu", Level.OK, names, facts={"num_gpus": len(gpus), "names": [gpu.name for gpu in gpus]})
    if has_device:
        return Finding(
            "gpu",
            Level.WARN,
            "the driver shows one that torch cannot use",
            "install the torch build for this driver's CUDA version",
            {"num_gpus": 0},
        )
    return Finding("gpu", Level.OK, "none; batches stay on the CPU", facts={"num_gpus": 0})


def sample_jpeg(*, num_bytes: int) -> bytes:
    """Makes a picture of roughly that many bytes, like a photograph: smooth, with fine noise."""
    import numpy as np
    from PIL import Image

    side = max(32, round((num_bytes * 2.2) ** 0.5))
    down, across = np.mgrid[0:side, 0:side] / side
    noise = np.random.default_rng(0).normal(0, 14, (side, side, 3))
    smooth = np.stack([down, across, (down + across) / 2], axis=-1) * 200 + 20
    pixels = np.clip(smooth + noise, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def measure_decoding(
    jpeg: bytes, *, backend: str, seconds: float, clock: Callable[[], float] = time.monotonic
) -> float:
    """Decodes one picture over and over on one core; returns pictures a second.

    Args:
        jpeg: Encoded.
        backend: Of those that are available.
        seconds: How long, about; at least one picture after one to warm up.
        clock: Monotonic seconds.
    """
    from concurrent_loader.decode import make_decoder

    decode = make_decoder("rgb", "jpeg", backend=backend)  # type: ignore[arg-type]
    decode(jpeg)
    begun = clock()
    number = 0
    while number == 0 or clock() - begun < seconds:
        decode(jpeg)
        number += 1
    return number / max(clock() - begun, 1e-9)


def judge_decoder(backends: tuple[str, ...], *, native_crop: bool, images_s: float | None, num_cores: int) -> Finding:
    """Judges what decodes.

    Args:
        backends: Usable libraries, the preferred one first.
        native_crop: Whether the native module for crops of JPEGs was built.
        images_s: Of one core, as measured.
        num_cores: That the process may use.
    """
    facts = {
        "backends": list(backends),
        "native_crop": native_crop,
        "images_s_per_core": None if images_s is None else round(images_s, 1),
        "num_cores": num_cores,
    }
    if not backends:
        return Finding("decoder", Level.FAIL, "no library can decode pictures", "pip install torchcodec", facts)
    pace = "" if images_s is None else f", {images_s:,.0f} images/s on one core of {num_cores}"
    said = f"{backends[0]}{' and native crops' if native_crop else ''}{pace}"
    if backends[0] == "pillow":
        return Finding("decoder", Level.WARN, said, "torchcodec is faster: pip install torchcodec", facts)
    if not native_crop:
        advice = (
            "with libjpeg-turbo's headers and a compiler at installation, crops are decoded faster (docs/decoding.md)"
        )
        return Finding("decoder", Level.WARN, f"{said}, no native crops", advice, facts)
    return Finding("decoder", Level.OK, said, facts=facts)
