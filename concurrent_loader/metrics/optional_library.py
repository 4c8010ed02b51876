"""Imports the libraries of monitoring systems, which are optional."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["optional_library"]


def optional_library(module: str, *, package: str, extra: str = "") -> Any:
    """Imports a module of an optional library.

    Raises:
        ConfigurationError: The library is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        more = f", or install concurrent-loader with its extra {extra!r}" if extra else ""
        raise ConfigurationError(f"these metrics need {package}: run `pip install {package}`{more}") from error
