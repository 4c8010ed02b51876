"""Lossless pictures in tiles that decode independently, on processors and accelerators: docs/lossless.md."""

from storage.lossless.decoder import decode
from storage.lossless.encoder import encode
from storage.lossless.layout import MAGIC, PictureHeader, parse_header
from storage.lossless.native import has_native_lossless

__all__ = ["MAGIC", "PictureHeader", "decode", "encode", "has_native_lossless", "parse_header"]
