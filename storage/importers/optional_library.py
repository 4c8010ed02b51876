"""Imports the libraries of other formats, which are optional, when a source is read."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["import_library"]


def import_library(module: str, *, extra: str, package: str = "") -> Any:
    """Imports a library that is an extra of this package.

    Args:
        module: Name of the module.
        extra: Name of the extra in ``pyproject.toml``.
        package: Name of the package for pip, if it differs from the module's.

    Raises:
        ConfigurationError: The library is not installed, or cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == root
        why = "is not installed" if is_missing else f"cannot be imported ({error})"
        raise ConfigurationError(
            f"this format needs {package or root}, which {why}: run `pip install {package or root}`, or install "
            f"concurrent-loader with its extra: `pip install '.[{extra}]'` in the clone"
        ) from error
