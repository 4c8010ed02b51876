"""Keeps secrets out of a call's variables, which debuggers, rich and Sentry show with a traceback."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from concurrent_loader.storage.checked_url import secret_in_url
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.redaction import shorten_traceback
from concurrent_loader.storage.secret import hide

__all__ = ["hides_secrets"]

P = ParamSpec("P")
R = TypeVar("R")
_URLS = ("url", "dst")
_OPTIONS = ("storage_options", "options", "dst_storage_options")


def hides_secrets(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function with storage options and an argument ``url``, and perhaps another one, ``dst``.

    A URL with a secret is rejected before the function receives it. `concurrent_loader.storage.secret.hide` wraps the
    mappings named in ``_OPTIONS``, and keywords that the function does not name. The traceback of a
    `StorageError` ends here, with a note that names the lines below.

    Raises:
        ConfigurationError: The URL contains a secret; see `concurrent_loader.storage.checked_url`.
    """
    parameters = inspect.signature(function).parameters
    names = [name for name, each in parameters.items() if each.kind is not inspect.Parameter.VAR_KEYWORD]

    def is_hidden(name: str) -> bool:
        return name in _OPTIONS or name not in names

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        places = dict(zip(names, args, strict=False))
        urls = [kwargs.get(name, places.get(name)) for name in _URLS]
        checked = (secret_in_url(os.fspath(url)) for url in urls if isinstance(url, str | os.PathLike))
        if (refused := next((error for error in checked if error is not None), None)) is not None:
            del urls, checked, args, kwargs, places
            raise refused
        del urls, checked
        hidden: dict[str, Any] = {k: hide(v, name=k) if is_hidden(k) else v for k, v in kwargs.items()}
        kept = [hide(value, name=name) if is_hidden(name) else value for name, value in places.items()]
        rest = args[len(kept) :]  # surplus arguments, for which the function raises its usual error
        del args, kwargs, places
        try:
            return cast("Callable[..., R]", function)(*kept, *rest, **hidden)
        except StorageError as error:
            shorten_traceback(error, num_frames=1)
            raise

    return call
