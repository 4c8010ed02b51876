"""Lists the image libraries, and chooses one for each format.

A library is one row of `LIBRARIES`: its module in this folder, the formats that it decodes, and how to install it. The
module has ``FORMATS``, the names of the formats that the installed release decodes, and ``decode``, a function of
(bytes, header, mode) that returns (C, H, W).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal, NoReturn, get_args

import torch

from concurrent_loader.decode.backends.library_errors import out_of_memory_error
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.images import Buffer, ImageHeader

__all__ = ["LIBRARIES", "Backend", "Decode", "Library", "available_backends", "libraries_of", "load_decode"]

Backend = Literal["auto", "torchcodec", "torchvision", "simplejpeg", "pillow"]
Decode = Callable[[Buffer, ImageHeader, str], torch.Tensor]

_logger = logging.getLogger(__name__)

# A library may be missing, too old, or built for another release of torch and fail to load.
_UNUSABLE = (ImportError, AttributeError, RuntimeError, OSError)


@dataclass(frozen=True, slots=True)
class Library:
    """Describes an image library.

    Attributes:
        formats: Names of the formats that the loader leaves to the library.
        needs: Command that installs the library.
    """

    formats: frozenset[str]
    needs: str


# In the order of preference; docs/how-to/decoding.md has the measurements.
LIBRARIES: dict[str, Library] = {
    "simplejpeg": Library(frozenset({"jpeg"}), "pip install simplejpeg"),
    "torchcodec": Library(frozenset({"jpeg", "png", "webp", "avif"}), "pip install 'torchcodec>=0.16'"),
    "torchvision": Library(frozenset({"jpeg", "webp"}), "pip install torchvision"),
    "pillow": Library(frozenset({"jpeg", "png", "webp", "avif", "gif"}), "pip install 'pillow>=11.3'"),
    "lossless": Library(frozenset({"lossless"}), "nothing: the package itself decodes it"),
}

_BACKENDS: tuple[Backend, ...] = tuple(name for name in get_args(Backend) if name != "auto")


def libraries_of(image_format: str) -> tuple[str, ...]:
    """Returns the names of the libraries that decode a format, the preferred one first."""
    return tuple(name for name, library in LIBRARIES.items() if image_format in library.formats)


def available_backends(image_format: str | None = None) -> tuple[Backend, ...]:
    """Returns the installed image libraries.

    Args:
        image_format: Format to decode, such as ``"jpeg"``; None returns every usable library.

    Returns:
        Names to pass as ``backend``, for a format in the order of preference.

    Example:
        >>> from concurrent_loader.decode import available_backends
        >>> available_backends("gif")
        ('pillow',)
    """
    if image_format is None:
        return tuple(name for name in _BACKENDS if not isinstance(_load(name), Exception))
    return tuple(name for name in libraries_of(image_format) if name in _BACKENDS and _decodes(name, image_format))


def load_decode(formats: Iterable[str], backend: Backend) -> Decode:
    """Chooses a library for each format.

    Args:
        formats: Names of formats, from `concurrent_loader.storage.images.FORMATS`.
        backend: Library for all formats that it decodes; Pillow then decodes the others. ``"auto"`` takes the
            preferred library that is installed, for each format.

    Returns:
        A function of (bytes, header, mode), with mode "RGB", "GRAY" or "UNCHANGED".

    Raises:
        ConfigurationError: The library is unknown or unusable, or no installed library decodes any of the formats.
    """
    if backend != "auto" and backend not in _BACKENDS:
        raise ConfigurationError("the image library is unknown", expected=["auto", *_BACKENDS], got=backend)
    if backend != "auto" and isinstance(error := _load(backend), Exception):
        raise ConfigurationError(
            "this image library cannot be used here", expected=LIBRARIES[backend].needs, got=f"{backend}: {error}"
        ) from error
    chosen = {name: _choose(name, backend) for name in formats}
    if all(decode is None for decode in chosen.values()):
        raise ConfigurationError("no installed library decodes this format", expected=_needs(*chosen), got=list(chosen))
    table = {name: decode or _missing(name) for name, decode in chosen.items()}

    def decode(data: Buffer, header: ImageHeader, mode: str) -> torch.Tensor:
        try:
            return table[header.format](data, header, mode)
        except MemoryError as error:
            raise out_of_memory_error(error) from error

    return decode


@cache
def _load(library: str) -> tuple[Decode, frozenset[str]] | Exception:
    try:
        module = import_module(f"concurrent_loader.decode.backends.{library}")
        return module.decode, LIBRARIES[library].formats & frozenset(module.FORMATS)
    except _UNUSABLE as error:
        _logger.info("images are not decoded by %s: %s", library, error)
        return error


def _choose(image_format: str, backend: Backend) -> Decode | None:
    libraries = libraries_of(image_format)
    for name in libraries if backend == "auto" else (backend, "pillow", *libraries):
        loaded = _load(name)
        if not isinstance(loaded, Exception) and image_format in loaded[1]:
            return loaded[0]
    return None


def _decodes(library: str, image_format: str) -> bool:
    loaded = _load(library)
    return not isinstance(loaded, Exception) and image_format in loaded[1]


def _missing(image_format: str) -> Decode:
    def refuse(data: Buffer, header: ImageHeader, mode: str) -> NoReturn:
        raise DecodeError("no installed library decodes this format", expected=_needs(image_format), got=image_format)

    return refuse


def _needs(*formats: str) -> str:
    names = dict.fromkeys(name for image_format in formats for name in libraries_of(image_format))
    return " or ".join(LIBRARIES[name].needs for name in names)
