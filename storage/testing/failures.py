"""What can go wrong before there is a server to talk to; part of the `storage.errors` tree.

::

    StorageError
    ├── ToolUnavailable    a program is neither here nor can it be built
    └── ServerFailed       a program was started and did not become a server that answers
"""

from __future__ import annotations

from storage.errors import StorageError

__all__ = ["ServerFailed", "ToolUnavailable"]


class ToolUnavailable(StorageError):
    """A program is not on PATH, not in the cache, and cannot be built here; the message says what would help."""


class ServerFailed(StorageError):
    """A server ended, or did not answer before its deadline; the message carries the end of its log."""
