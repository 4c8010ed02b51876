"""Shows a loader to people: five lines for `print`, a table for notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.metrics.live_server import describe, server
from concurrent_loader.metrics.live_view import live_rows
from concurrent_loader.metrics.running import iterations
from concurrent_loader.order.options import PlanOptions
from concurrent_loader.stats.loader_stats import LoaderStats
from concurrent_loader.storage.html_table import html_table
from concurrent_loader.storage.public_names import PublicNames
from concurrent_loader.storage.sizes import format_count, format_size

__all__ = ["Resources", "ShownLoader", "delivered_text", "loader_html"]


@dataclass(frozen=True, slots=True)
class Resources:
    """What a native loader makes batches with: numbers of workers, threads and batches ahead, and bytes ahead."""

    workers: int
    threads: int
    batches: int
    num_bytes: int

    def __str__(self) -> str:
        workers = f"{format_count(self.workers, 'worker')}, " if self.workers else ""
        ahead = f"{format_count(self.batches, 'batch', 'batches')} and {format_size(self.num_bytes)} ahead"
        return f"{workers}{format_count(self.threads, 'thread')}, {ahead}"


def loader_html(loader: Any) -> str:
    """Returns a table for notebooks: what `concurrent-loader top` shows during an iteration, otherwise the counters."""
    running = iterations.of(loader)
    if running is None:
        table: str = loader.stats._repr_html_()
        return table
    return html_table(type(loader).__name__, live_rows(describe(running, server.history(running))))


def delivered_text(stats: LoaderStats) -> str:
    """Returns the line of a loader's description about what it has delivered."""
    batches, samples = format_count(stats.num_batches, "batch", "batches"), format_count(stats.num_samples, "sample")
    return f"  delivered {batches}, {samples}; waited {stats.wait_share:.0%} of {stats.total_s:.1f} s"


class ShownLoader(PublicNames):
    """What a native loader shows of itself, without a request."""

    dataset: LoadableDataset
    batch_size: int
    rank: int
    world_size: int
    device: Any
    _plan_options: PlanOptions

    def _resources(self) -> Resources:
        raise NotImplementedError

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.dataset!r}, batch_size={self.batch_size}, rank={self.rank}/{self.world_size})"
        )

    def __str__(self) -> str:
        """Describes the loader, and what it has delivered, in five lines."""
        me: Any = self
        options = self._plan_options
        order = f"shuffled with seed {options.seed}" if options.shuffle else "in the dataset's order"
        num_batches, num_samples = format_count(len(me), "batch", "batches"), format_count(self.batch_size, "sample")
        return "\n".join(
            (
                f"{type(self).__name__} of {str(self.dataset).splitlines()[0]}",
                f"  {num_batches} of {num_samples} per epoch, {order}, last batch: {options.last_batch}",
                f"  rank {self.rank} of {self.world_size}, epoch {me.epoch}, device {self.device or 'cpu'}",
                f"  {self._resources()}",
                delivered_text(me.stats),
            )
        )

    def _repr_html_(self) -> str:
        """Shows the loader in a notebook."""
        return loader_html(self)
