"""Keeps secrets out of the variables of a call: debuggers, rich and Sentry show the frames of a traceback with them."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from storage.checked_url import secret_in_url
from storage.errors import StorageError
from storage.secrets import hide, shortened

__all__ = ["hides_secrets"]

P = ParamSpec("P")
R = TypeVar("R")
_OPTIONS = ("storage_options", "options")


def hides_secrets(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function that takes a ``url`` and options of a store.

    A URL that holds a secret is refused before the function has it. Options are wrapped (`storage.secrets.hide`): those
    in a mapping ``storage_options`` or ``options``, and keywords that the function does not name. The traceback of a
    `StorageError` ends here; a note names the lines below.

    Raises:
        ConfigurationError: From the call, if the URL holds a secret; see `storage.checked_url`.
    """
    parameters = inspect.signature(function).parameters
    names = [name for name, each in parameters.items() if each.kind is not inspect.Parameter.VAR_KEYWORD]

    def is_hidden(name: str) -> bool:
        return name in _OPTIONS or name not in names

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        places = dict(zip(names, args, strict=False))
        url = kwargs.get("url", places.get("url"))
        if isinstance(url, str | os.PathLike) and (refused := secret_in_url(os.fspath(url))) is not None:
            del url, args, kwargs, places
            raise refused
        hidden: dict[str, Any] = {k: hide(v, name=k) if is_hidden(k) else v for k, v in kwargs.items()}
        kept = [hide(value, name=name) if is_hidden(name) else value for name, value in places.items()]
        rest = args[len(kept) :]  # too many: the function says so
        del args, kwargs, places
        try:
            return cast("Callable[..., R]", function)(*kept, *rest, **hidden)
        except StorageError as error:
            shortened(error, num_frames=1)
            raise

    return call
