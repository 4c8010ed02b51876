"""Appends metrics to a file, one JSON object per line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from concurrent_loader.metrics.instruments import flat
from concurrent_loader.metrics.snapshot import Snapshot

__all__ = ["JsonLinesMetrics"]


class JsonLinesMetrics:
    """Appends a line for each snapshot: time, name and rank of the loader, and all metrics; see `observe`.

    Args:
        path: File. Each rank needs its own.

    Example:
        >>> import json, pathlib
        >>> from concurrent_loader import JsonLinesMetrics
        >>> from concurrent_loader.metrics.snapshot import Snapshot
        >>> JsonLinesMetrics("metrics.jsonl").observe(Snapshot(name="train"))
        >>> json.loads(pathlib.Path("metrics.jsonl").read_text())["loader"]
        'train'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def observe(self, snapshot: Snapshot) -> None:
        """Appends a snapshot."""
        row = {"time_s": round(snapshot.time_s, 3), "loader": snapshot.name, "rank": snapshot.rank, **flat(snapshot)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
