"""Loads the optional native module of encoder and decoder, which exists if the package was built with a C compiler."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any, Literal

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["Native", "has_native_lossless", "native_module"]

Native = bool | Literal["auto"]

_logger = logging.getLogger(__name__)

_module: Any
try:
    _module = import_module("concurrent_loader.storage.lossless._tiles")
except ImportError as _error:
    _module = None
    _logger.info(
        "lossless images are packed and unpacked in numpy, because the native module cannot be loaded: %s", _error
    )


def has_native_lossless() -> bool:
    """Returns whether the native module was built and can be loaded.

    Example:
        >>> from concurrent_loader.storage.lossless import has_native_lossless
        >>> isinstance(has_native_lossless(), bool)
        True
    """
    return _module is not None


def native_module(native: Native) -> Any:
    """Returns the native module; None to use numpy.

    Raises:
        ConfigurationError: ``native`` is True and the module was not built.
    """
    if native is True and _module is None:
        raise ConfigurationError("the native module for lossless images was not built", expected="a C compiler")
    return _module if native else None
