"""Where things that outlive a process are kept for the person who runs it: the XDG base directories."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "state_folder"]

_NAME = "concurrent-loader"


def cache_folder() -> Path:
    """What may be deleted and is made again: built programs. Not created here."""
    return _base("XDG_CACHE_HOME", ".cache") / _NAME


def state_folder() -> Path:
    """What tells one run of the command line about another: a running server. Not created here."""
    return _base("XDG_STATE_HOME", ".local/state") / _NAME


def _base(variable: str, default: str) -> Path:
    # The XDG specification: a relative path in the variable is to be ignored.
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / default
