"""The optional module in C behind encoder and decoder: there where a compiler was when the package was built."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any, Literal

from storage.errors import ConfigurationError

__all__ = ["Native", "has_native_lossless", "native_module"]

Native = bool | Literal["auto"]

_logger = logging.getLogger(__name__)

_module: Any
try:
    _module = import_module("storage.lossless._tiles")
except ImportError as _error:
    _module = None
    _logger.info("lossless pictures are packed and unpacked in numpy: %s", _error)


def has_native_lossless() -> bool:
    """Whether the native module was built and can be loaded."""
    return _module is not None


def native_module(native: Native) -> Any:
    """The module, or None where numpy is to do it.

    Raises:
        ConfigurationError: ``True``, and there is none.
    """
    if native is True and _module is None:
        raise ConfigurationError("the native module for lossless pictures was not built")
    return _module if native else None
