"""Progress bars: on standard error, and only where a person watches it."""

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
    """Shows a bar while the block runs; silent where standard error is no terminal.

    Args:
        in_bytes: Totals are bytes, and shown so; otherwise they are counts, and each task has a field ``rate``, a text.
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
