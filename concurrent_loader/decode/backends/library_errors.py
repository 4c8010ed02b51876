"""Translates errors of image libraries into `DecodeError`: damaged data, or too little memory."""

from __future__ import annotations

from concurrent_loader.errors import DecodeError

__all__ = ["library_error", "out_of_memory_error"]


def library_error(image_format: str, error: Exception, text: str) -> DecodeError:
    """Returns the error to raise for a failure of a library; torch reports a lack of memory as RuntimeError."""
    if "allocate memory" in str(error):
        return out_of_memory_error(error)
    return DecodeError(f"damaged {image_format} data", got=text[:200])


def out_of_memory_error(error: Exception) -> DecodeError:
    """Returns the error to raise if memory ran out while an image was decoded."""
    lines = str(error).strip().splitlines()
    return DecodeError("there was not enough memory to decode the image", got=lines[0][-200:] if lines else None)
