"""Wraps credentials, so that they are neither shown nor stored on their way from a user's options to a client.

A `Secret` shows itself as ``***`` and pickles without its value. The only exception is the pickle that starts a child
process, which would get the value by fork anyway.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any, Self

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fork_safety import register_fork_handler
from concurrent_loader.storage.redaction import MASK, redact_url, remember

__all__ = ["Secret", "hide", "is_lost", "reveal"]

_LOST = (
    "the credentials were left out of the pickle that this object comes from: pass them again with "
    "with_storage_options(...) or as storage_options, or set up the standard AWS chain here"
)
_MAX_REMEMBERED = 4096  # the newest values: tokens live for an hour, processes for weeks
_NAMES = re.compile(
    r"key|secret|token|passw|passphrase|pwd|sas|credential|auth|connection_string|cookie|signature|private",
    re.IGNORECASE,
)
_PLAIN = (list, tuple, set)  # not their subclasses, whose constructors may take other arguments


class _Values:
    """The values of secrets, by fingerprint."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[str, object] = OrderedDict()
        # Without this random key, nobody can compare a fingerprint with the hash of a guess.
        self._key = secrets.token_bytes(32)
        register_fork_handler(self)

    def after_fork_in_child(self) -> None:
        """Creates a new lock, because another thread may have held the old one during the fork."""
        self._lock = threading.Lock()

    def fingerprint(self, value: object) -> str:
        data = value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else None
        if data is None:
            return f"object-{id(value):x}-{secrets.token_hex(8)}"
        return hashlib.blake2b(data, key=self._key, digest_size=16).hexdigest()

    def keep(self, fingerprint: str, value: object) -> None:
        with self._lock:
            self._values[fingerprint] = value
            while len(self._values) > _MAX_REMEMBERED:
                self._values.popitem(last=False)
        remember(value)

    def find(self, fingerprint: str) -> tuple[object] | None:
        with self._lock:
            return (self._values[fingerprint],) if fingerprint in self._values else None


_values = _Values()


class Secret:
    """A value that is neither shown nor stored.

    A pickle holds a keyed hash instead of the value. A process that has seen the value finds it again; in any other
    process the value is *lost*, and `reveal` raises an error with advice. Only the pickle that starts a child process
    (`multiprocessing` by spawn or forkserver) holds the value, and it goes through a private pipe. Copies return the
    object itself.
    """

    __slots__ = ("_fingerprint", "_value")

    def __init__(self, value: object) -> None:
        self._value: tuple[object] | None = (value,)
        self._fingerprint = _values.fingerprint(value)
        _values.keep(self._fingerprint, value)

    @property
    def lost(self) -> bool:
        """Whether the value stayed in another process."""
        return self._value is None

    def reveal(self) -> Any:
        """Returns the value.

        Raises:
            ConfigurationError: The value is lost.
        """
        if self._value is None:
            raise ConfigurationError(_LOST)
        return self._value[0]

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._fingerprint, other._fingerprint)

    def __hash__(self) -> int:
        return hash(self._fingerprint)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        if self._value is not None and get_spawning_popen() is not None:
            return _restore, (self._fingerprint, self._value)
        return _restore, (self._fingerprint, None)


def _restore(fingerprint: str, value: tuple[object] | None) -> Secret:
    secret = object.__new__(Secret)
    secret._fingerprint = fingerprint
    secret._value = value if value is not None else _values.find(fingerprint)
    if secret._value is not None:
        _values.keep(fingerprint, secret._value[0])
    return secret


def hide(value: Any, *, name: str = "") -> Any:
    """Wraps the secrets among options in `Secret`, judging by their names.

    Names such as ``*key*``, ``*secret*``, ``*token*``, ``*password*``, ``*sas*``, ``*credential*`` and ``*auth*`` hide
    text, bytes and objects, and everything in a mapping below. Numbers, paths and callables stay as they are. Under
    other names, only URLs with a password or a signature are hidden.

    Args:
        value: Value of an option, or a mapping or list of values at any depth.
        name: Name of the option.
    """
    secret = _NAMES.search(name) is not None
    match value:
        case Secret() | None | bool() | int() | float() | os.PathLike():
            return value
        case str() | bytes():
            return Secret(value) if secret or (isinstance(value, str) and redact_url(value) != value) else value
        case Mapping():
            return {key: hide(inner, name=name if secret else str(key)) for key, inner in value.items()}
        case _ if type(value) in _PLAIN:
            return type(value)(hide(inner, name=name) for inner in value)
        case _:
            return Secret(value) if secret and not callable(value) else value


def reveal(value: Any) -> Any:
    """Returns options with all secrets unwrapped, for a client.

    Raises:
        ConfigurationError: A secret was lost in a pickle.
    """
    match value:
        case Secret():
            return value.reveal()
        case Mapping():
            return {key: reveal(inner) for key, inner in value.items()}
        case _ if type(value) in _PLAIN:
            return type(value)(reveal(inner) for inner in value)
        case _:
            return value


def is_lost(value: object) -> bool:
    """Returns whether a value is a secret that stayed in another process."""
    return isinstance(value, Secret) and value.lost
