"""The registry: which libraries decode an encoding, what each needs, and which of them it is here.

An encoding is one line in `ENCODINGS`, a library one in `LIBRARIES`. A library's module has ``FORMATS``, the encodings
that it decodes with what is installed, and ``decode`` (bytes, header, mode) → (C, H, W).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal, NoReturn

import torch

from concurrent_loader.decode.faults import out_of_memory
from concurrent_loader.decode.header import Buffer, ImageHeader
from concurrent_loader.errors import DecodeError
from storage.errors import ConfigurationError

__all__ = ["ENCODINGS", "LIBRARIES", "Backend", "Decode", "Library", "available_backends", "load_decode"]

Backend = Literal["auto", "torchcodec", "torchvision", "simplejpeg", "pillow"]
Decode = Callable[[Buffer, ImageHeader, str], torch.Tensor]

_logger = logging.getLogger(__name__)

# Besides being absent, a library may be too old, or built for another torch and fail to load.
_UNUSABLE = (ImportError, AttributeError, RuntimeError, OSError)


@dataclass(frozen=True, slots=True)
class Library:
    """What decodes.

    Attributes:
        module: That stands between it and the registry.
        needs: What to type where it is missing.
    """

    module: str
    needs: str


LIBRARIES: dict[str, Library] = {
    "torchcodec": Library("torchcodec_images", "pip install 'torchcodec>=0.16'"),
    "torchvision": Library("torchvision_images", "pip install torchvision"),
    "simplejpeg": Library("simplejpeg_images", "pip install 'concurrent-loader[simplejpeg]'"),
    "pillow": Library("pillow_images", "pip install 'pillow>=11.3'"),
    "lossless": Library("lossless_images", "nothing: it is part of the package"),
}

_NAMES: tuple[Backend, ...] = ("torchcodec", "torchvision", "simplejpeg", "pillow")

# Encoding → libraries, the preferred one first; docs/decoding.md has the measurements.
ENCODINGS: dict[str, tuple[str, ...]] = {
    "jpeg": ("simplejpeg", "torchcodec", "torchvision", "pillow"),
    "png": ("torchcodec", "pillow"),
    "webp": ("torchcodec", "torchvision", "pillow"),
    "avif": ("torchcodec", "pillow"),
    "gif": ("pillow",),
    "lossless": ("lossless",),
}


def available_backends(encoding: str | None = None) -> tuple[Backend, ...]:
    """Libraries that can be used here; for one encoding those that decode it, in the order in which they are taken."""
    row: tuple[str, ...] = _NAMES if encoding is None else ENCODINGS[encoding]
    return tuple(sorted((name for name in _NAMES if name in row and _decodes(name, encoding)), key=row.index))


def load_decode(formats: Iterable[str], backend: Backend) -> Decode:
    """Chooses a library for each of some encodings, once.

    Args:
        formats: Encodings.
        backend: The library that decodes all it can; Pillow then decodes the rest. ``"auto"``: the first one that is
            here, of each encoding's own row.

    Returns:
        A function of (bytes, header, mode), with mode "RGB", "GRAY" or "UNCHANGED".

    Raises:
        ConfigurationError: There is no such library, it cannot be used here, or nothing here decodes any of these.
    """
    if backend != "auto" and backend not in _NAMES:
        raise ConfigurationError("no such decoder", expected=["auto", *_NAMES], got=backend)
    if backend != "auto" and isinstance(error := _load(backend), Exception):
        raise ConfigurationError(
            "this image library cannot be used here", expected=LIBRARIES[backend].needs, got=f"{backend}: {error}"
        ) from error
    chosen = {name: _choose(name, backend) for name in formats}
    if all(decode is None for decode in chosen.values()):
        raise ConfigurationError(
            "no library that is installed decodes this", expected=_needs(*chosen), got=list(chosen)
        )
    table = {name: decode or _missing(name) for name, decode in chosen.items()}

    def decode(data: Buffer, header: ImageHeader, mode: str) -> torch.Tensor:
        try:
            return table[header.format](data, header, mode)
        except MemoryError as error:
            raise out_of_memory(error) from error

    return decode


@cache
def _load(library: str) -> tuple[Decode, frozenset[str]] | Exception:
    try:
        module = import_module(f"concurrent_loader.decode.{LIBRARIES[library].module}")
        return module.decode, frozenset(module.FORMATS)
    except _UNUSABLE as error:
        _logger.info("images are not decoded by %s: %s", library, error)
        return error


def _choose(encoding: str, backend: Backend) -> Decode | None:
    order = ENCODINGS[encoding] if backend == "auto" else (backend, "pillow", *ENCODINGS[encoding])
    for name in order:
        loaded = _load(name)
        if not isinstance(loaded, Exception) and encoding in loaded[1]:
            return loaded[0]
    return None


def _decodes(library: str, encoding: str | None) -> bool:
    loaded = _load(library)
    return not isinstance(loaded, Exception) and encoding in (None, *loaded[1])


def _missing(encoding: str) -> Decode:
    def refuse(data: Buffer, header: ImageHeader, mode: str) -> NoReturn:
        raise DecodeError("no library that is installed decodes this", expected=_needs(encoding), got=encoding)

    return refuse


def _needs(*encodings: str) -> str:
    names = dict.fromkeys(name for encoding in encodings for name in ENCODINGS[encoding])
    return " or ".join(LIBRARIES[name].needs for name in names)
