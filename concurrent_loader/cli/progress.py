"""Shows progress bars of commands that take long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(*, in_bytes: bool) -> Iterator[Progress]:
    """Shows a progress bar while the block runs, if standard error is a terminal.

    Args:
        in_bytes: Whether totals are bytes. Otherwise totals are counts, and each task has a text field ``rate``.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amounts: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    if in_bytes:
        amounts = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *amounts,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    ) as progress:
        yield progress
