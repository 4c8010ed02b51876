"""Finds a function of the user by its name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["find_function"]


def find_function(name: str) -> Callable[..., Any]:
    """Returns a function by its name, ``"module:function"``; the current folder is searched, too.

    Raises:
        ConfigurationError: There is no such function.
    """
    module, separator, attribute = name.partition(":")
    if not separator or not module or not attribute:
        raise ConfigurationError("a function must be named as MODULE:FUNCTION", got=name)
    here = os.getcwd()  # noqa: PTH109 - a text, as in sys.path
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, and lacks something itself
        raise ConfigurationError("there is no such module here or in the Python path", got=module) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigurationError("the module has no such function", expected=attribute, got=module)
    return found  # type: ignore[no-any-return]
