"""Errors of image libraries as `DecodeError`: damage, or too little memory."""

from __future__ import annotations

from concurrent_loader.errors import DecodeError

__all__ = ["library_fault", "out_of_memory"]


def library_fault(image_format: str, error: Exception, text: str) -> DecodeError:
    """Returns the error to raise for what a library said; torch reports a lack of memory as RuntimeError."""
    if "allocate memory" in str(error):
        return out_of_memory(error)
    return DecodeError(f"damaged {image_format} data", got=text[:200])


def out_of_memory(error: Exception) -> DecodeError:
    """Returns the error to raise where decoding an image failed for want of memory."""
    lines = str(error).strip().splitlines()
    return DecodeError("there was not enough memory to decode the image", got=lines[0][-200:] if lines else None)
