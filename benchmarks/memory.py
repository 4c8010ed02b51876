"""The highest resident memory of this process since a moment of one's choice."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil


def start_peak_rss() -> int:
    """Forgets the highest resident memory so far where the system can; returns the present one, in bytes."""
    clear_refs = Path("/proc/self/clear_refs")
    if clear_refs.exists():
        clear_refs.write_text("5")
    return int(psutil.Process().memory_info().rss)


def peak_rss_bytes() -> int:
    """Highest resident memory of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
