"""Opens the device that a loader was asked for, and touches none that it was not asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from concurrent_loader.device.backend import DeviceBackend
from storage.errors import ConfigurationError

__all__ = ["check_pinning", "device_codecs", "has_stage", "open_backend", "resolve_device"]

_CUDA = "concurrent_loader.device.cuda"


def has_stage(device: torch.device | None) -> bool:
    """Whether batches for a device take the device stage; for others they are made on the CPU, and moved."""
    return device is not None and device.type == "cuda"


def resolve_device(device: str | torch.device | None) -> torch.device | None:
    """Makes sure that a device is there, without touching any other.

    Raises:
        ConfigurationError: It is not, or that is no device.
    """
    if device is None:
        return None
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError("device must be 'cpu', 'cuda', 'cuda:1' or the like", got=device) from error
    if wanted.type == "cuda":
        return _cuda().resolve_cuda(wanted)  # type: ignore[no-any-return]
    if wanted.type != "cpu":
        try:
            torch.zeros(1, device=wanted)
        except (RuntimeError, NotImplementedError, AssertionError, ImportError) as error:
            raise ConfigurationError(
                "this device cannot be used here; leave device= out for batches on the CPU",
                expected="'cpu', 'cuda' or a device that torch can use here", got=str(wanted),
            ) from error  # fmt: skip
    return wanted


def check_pinning(device: torch.device | None) -> None:
    """Makes sure that memory can be page-locked, where that was asked for.

    Raises:
        ConfigurationError: There is no accelerator that would copy from it.
    """
    if not has_stage(device) and not torch.accelerator.is_available():
        raise ConfigurationError("pin_memory is for a GPU, and none can be used here: leave it out")


def device_codecs(device: torch.device | None) -> tuple[str, ...]:
    """Names what a device decodes; nothing for those without a device stage.

    Raises:
        DeviceError: It cannot be used.
    """
    if device is None or not has_stage(device):
        return ()
    backend = open_backend(device, pinned=False)
    try:
        return tuple(backend.codecs)
    finally:
        backend.close()


def open_backend(device: torch.device, *, pinned: bool) -> DeviceBackend:
    """Opens a device for one iteration; on the thread that will use it.

    Raises:
        DeviceError: It cannot be used.
    """
    return _cuda().CudaBackend(device, pinned=pinned)  # type: ignore[no-any-return]


def _cuda() -> Any:
    # Not before it is wanted: a process that asks for no GPU must not wake a driver.
    return import_module(_CUDA)
