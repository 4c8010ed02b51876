"""Errors of starting a server; part of the `concurrent_loader.storage.errors` tree.

::

    StorageError
    ├── ToolUnavailable    a program is not installed and cannot be built
    └── ServerFailed       a server was started but does not respond
"""

from __future__ import annotations

from concurrent_loader.storage.errors import StorageError

__all__ = ["ServerFailed", "ToolUnavailable"]


class ToolUnavailable(StorageError):
    """A program is neither on PATH nor in the cache, and cannot be built; the message says what helps.

    Example:
        >>> from concurrent_loader.storage import StorageError
        >>> from concurrent_loader.storage.testing import ToolUnavailable
        >>> issubclass(ToolUnavailable, StorageError)
        True
    """


class ServerFailed(StorageError):
    """A server ended, or did not respond in time; the message has the end of its log.

    Example:
        >>> from concurrent_loader.storage import StorageError
        >>> from concurrent_loader.storage.testing import ServerFailed
        >>> issubclass(ServerFailed, StorageError)
        True
    """
