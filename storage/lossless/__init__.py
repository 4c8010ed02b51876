"""Encodes and decodes lossless images in tiles that decode independently, on CPUs and GPUs."""

from concurrent_loader.storage.lossless.decoder import decode
from concurrent_loader.storage.lossless.encoder import encode
from concurrent_loader.storage.lossless.layout import MAGIC, LosslessHeader, parse_header
from concurrent_loader.storage.lossless.native import has_native_lossless

__all__ = ["MAGIC", "LosslessHeader", "decode", "encode", "has_native_lossless", "parse_header"]
