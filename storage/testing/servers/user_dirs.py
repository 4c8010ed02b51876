"""Folders of the user for files that outlive a process: the XDG base directories."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "state_folder"]

_NAME = "concurrent-loader"


def cache_folder() -> Path:
    """Returns the folder for built programs, which may be deleted at any time; does not create it."""
    return _base("XDG_CACHE_HOME", ".cache") / _NAME


def state_folder() -> Path:
    """Returns the folder for the state of running servers; does not create it."""
    return _base("XDG_STATE_HOME", ".local/state") / _NAME


def _base(variable: str, default: str) -> Path:
    # The XDG specification says that relative paths are ignored.
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / default
