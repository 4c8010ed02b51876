"""Opens the device that the loader asks for, without touching any other device."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from concurrent_loader.device.backend import DeviceBackend
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["check_pinning", "device_codecs", "has_stage", "open_backend", "resolve_device"]

_CUDA = "concurrent_loader.device.cuda"


def has_stage(device: torch.device | None) -> bool:
    """Returns whether the device stage makes the batches; for other devices they are made on the CPU and moved."""
    return device is not None and device.type == "cuda"


def resolve_device(device: str | torch.device | None) -> torch.device | None:
    """Checks that a device exists, without touching any other device.

    Raises:
        ConfigurationError: The device is unknown or cannot be used.
    """
    if device is None:
        return None
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(
            "device must be the name of a torch device", expected="'cpu', 'cuda', 'cuda:1', …", got=device
        ) from error
    if wanted.type == "cuda":
        return _cuda().resolve_cuda(wanted)  # type: ignore[no-any-return]
    if wanted.type != "cpu":
        try:
            torch.zeros(1, device=wanted)
        except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
            raise ConfigurationError(
                "this device cannot be used here: leave out device= to get batches on the CPU",
                expected="'cpu', 'cuda' or a device that torch can use here", got=str(wanted),
            ) from error  # fmt: skip
    return wanted


def check_pinning(device: torch.device | None) -> None:
    """Checks that memory can be page-locked.

    Raises:
        ConfigurationError: No accelerator is available that would copy from page-locked memory.
    """
    if not has_stage(device) and not torch.accelerator.is_available():
        raise ConfigurationError("pin_memory needs a GPU, and no GPU can be used here: leave it out")


def device_codecs(device: torch.device | None) -> tuple[str, ...]:
    """Returns the codecs that a device decodes; empty for a device without a device stage.

    Raises:
        DeviceError: The device cannot be used.
    """
    if device is None or not has_stage(device):
        return ()
    backend = open_backend(device, pinned=False)
    try:
        return tuple(backend.codecs)
    finally:
        backend.close()


def open_backend(device: torch.device, *, pinned: bool) -> DeviceBackend:
    """Opens a device for one iteration, on the thread that will use it.

    Raises:
        DeviceError: The device cannot be used.
    """
    return _cuda().CudaBackend(device, pinned=pinned)  # type: ignore[no-any-return]


def _cuda() -> Any:
    # Imported late, because a process that does not use a GPU must not initialize its driver.
    return import_module(_CUDA)
