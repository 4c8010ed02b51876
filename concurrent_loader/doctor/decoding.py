"""Checks what decodes images on this machine, and how fast: a GPU if there is one, the image library, one core."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from concurrent_loader.doctor.finding import Finding, Level

__all__ = ["Gpu", "check_decoder", "check_gpus", "find_gpus", "has_nvidia_device", "measure_decoding", "sample_jpeg"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """Describes a GPU that torch can use: name, and memory in bytes."""

    name: str
    memory_bytes: int


def find_gpus() -> tuple[Gpu, ...]:
    """Returns the GPUs that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return ()
    found = (torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count()))
    return tuple(Gpu(device.name, device.total_memory) for device in found)


def has_nvidia_device() -> bool:
    """Returns whether the NVIDIA driver exposes a device, even if torch cannot use it."""
    return Path("/dev/nvidiactl").exists()


def check_gpus(gpus: tuple[Gpu, ...], *, has_device: bool) -> Finding:
    """Checks the GPUs: no GPU is fine, but a GPU that torch cannot use is a warning."""
    if gpus:
        names = ", ".join(f"{gpu.name} ({gpu.memory_bytes // _MIB:,} MiB)" for gpu in gpus)
        return Finding("gpu", Level.OK, names, facts={"num_gpus": len(gpus), "names": [gpu.name for gpu in gpus]})
    if has_device:
        return Finding(
            "gpu",
            Level.WARN,
            "the driver exposes a GPU that torch cannot use",
            "install the build of torch for the CUDA version of this driver",
            {"num_gpus": 0},
        )
    return Finding("gpu", Level.OK, "no GPU; batches stay on the CPU", facts={"num_gpus": 0})


def sample_jpeg(*, num_bytes: int) -> bytes:
    """Makes an image of about that many bytes that resembles a photograph: smooth, with fine noise."""
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
    """Decodes one image repeatedly on one core; returns images per second.

    Args:
        jpeg: Encoded image.
        backend: Name of an installed library.
        seconds: Approximate duration; at least one image after one warm-up image.
        clock: Function that returns monotonic seconds.
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


def check_decoder(backends: tuple[str, ...], *, native_crop: bool, images_s: float | None, num_cores: int) -> Finding:
    """Checks the image libraries.

    Args:
        backends: Usable libraries, the preferred one first.
        native_crop: Whether the native module for JPEG crops was built.
        images_s: Measured images per second on one core; None if not measured.
        num_cores: Number of cores that the process may use.
    """
    facts = {
        "backends": list(backends),
        "native_crop": native_crop,
        "images_s_per_core": None if images_s is None else round(images_s, 1),
        "num_cores": num_cores,
    }
    if not backends:
        return Finding(
            "decoder", Level.FAIL, "no installed library decodes images", "run `pip install torchcodec`", facts
        )
    rate = "" if images_s is None else f", {images_s:,.0f} images/s on one of {num_cores} cores"
    message = f"{backends[0]}{' with native crops' if native_crop else ''}{rate}"
    if backends[0] == "pillow":
        return Finding("decoder", Level.WARN, message, "run `pip install torchcodec`, which is faster", facts)
    if not native_crop:
        advice = "reinstall with libjpeg-turbo's headers and a C compiler for faster crops (docs/how-to/decoding.md)"
        return Finding("decoder", Level.WARN, f"{message}, without native crops", advice, facts)
    return Finding("decoder", Level.OK, message, facts=facts)
