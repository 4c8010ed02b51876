"""From compressed bytes in page-locked memory to finished batches on an accelerator; the vendor's part is one file."""

from concurrent_loader.device.backend import DeviceBackend, Ticket, Undecodable
from concurrent_loader.device.deferral import DeferredDecoder
from concurrent_loader.device.opening import check_pinning, device_codecs, has_stage, open_backend, resolve_device
from concurrent_loader.device.outcomes import Staged
from concurrent_loader.device.pictures import StagedColumn, StagedPicture
from concurrent_loader.device.screening import CODECS, Codec
from concurrent_loader.device.stage import DeviceStage

__all__ = [
    "CODECS",
    "Codec",
    "DeferredDecoder",
    "DeviceBackend",
    "DeviceStage",
    "Staged",
    "StagedColumn",
    "StagedPicture",
    "Ticket",
    "Undecodable",
    "check_pinning",
    "device_codecs",
    "has_stage",
    "open_backend",
    "resolve_device",
]
