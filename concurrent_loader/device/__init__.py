"""Turns compressed bytes in page-locked memory into batches on a GPU. Only one file calls the library of the vendor."""

from concurrent_loader.device.backend import DeviceBackend, Ticket, Undecodable
from concurrent_loader.device.codecs import CODECS, Codec
from concurrent_loader.device.deferred_decoder import DeferredDecoder
from concurrent_loader.device.open_device import check_pinning, device_codecs, has_stage, open_backend, resolve_device
from concurrent_loader.device.stage import DeviceStage
from concurrent_loader.device.staged_batch import StagedBatch
from concurrent_loader.device.staged_images import StagedColumn, StagedImage

__all__ = [
    "CODECS",
    "Codec",
    "DeferredDecoder",
    "DeviceBackend",
    "DeviceStage",
    "StagedBatch",
    "StagedColumn",
    "StagedImage",
    "Ticket",
    "Undecodable",
    "check_pinning",
    "device_codecs",
    "has_stage",
    "open_backend",
    "resolve_device",
]
