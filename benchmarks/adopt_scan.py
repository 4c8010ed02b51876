"""One scan of `benchmarks.adopt` in a process of its own, which imports nothing else: its memory is measured.

A task is JSON on standard input: ``format, source, index, options``. The figures are JSON on standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.machine import peak_rss_bytes
from concurrent_loader.storage.adopt import adopt
from concurrent_loader.storage.stores import open_store


def main() -> None:
    """Adopts a source."""
    task = json.load(sys.stdin)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    report = adopt(task["format"], task["source"], task["index"], storage_options=task["options"])
    duration_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    peak_bytes = peak_rss_bytes()
    index_bytes = asyncio.run(_stored_bytes(task["index"], task["options"]))
    num_mb = report.plan.num_bytes / 1e6
    figures = {
        "mb": round(num_mb, 1),
        "samples": report.num_samples,
        "columns": len(report.plan.columns),
        "scan_mb_s": round(num_mb / cpu_s, 1),
        "scan_wall_mb_s": round(num_mb / duration_s, 1),
        "scan_rss_mb": round(peak_bytes / 1e6, 1),
        "index_bytes_per_sample": round(index_bytes / report.num_samples / len(report.plan.columns), 2),
    }
    print(json.dumps(figures))


async def _stored_bytes(url: str, options: Mapping[str, Any]) -> int:
    async with open_store(url, **options) as store:
        return sum([meta.size async for meta in store.list("")])


if __name__ == "__main__":
    main()
