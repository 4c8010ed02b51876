"""Decodes images: one decoder per column, with the image libraries that are installed."""

from concurrent_loader.decode.backends.libraries import Backend, available_backends
from concurrent_loader.decode.crop import Box, CropDecoder, has_native_crop, make_crop_decoder
from concurrent_loader.decode.header import ImageHeader, parse_header
from concurrent_loader.decode.registry import Decoder, make_decoder
from concurrent_loader.storage.images import DEFAULT_MAX_PIXELS

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "Backend",
    "Box",
    "CropDecoder",
    "Decoder",
    "ImageHeader",
    "available_backends",
    "has_native_crop",
    "make_crop_decoder",
    "make_decoder",
    "parse_header",
]
