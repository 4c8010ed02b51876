"""Who takes part in the peers' benchmark, from catalog.toml: packages, program, settings; and how much is measured."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Place = Literal["shards", "objects", "local"]


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer."""

    name: str  # as the command line and the JSON call it
    title: str  # as people do
    layout: str  # how its images lie: words for the report
    # ``shards``: in the bucket in a format that the peer writes; ``objects``: one object per image; ``local``: on the
    # local drive
    place: Place
    program: str  # module below `benchmarks.peers.programs`
    # its file below ``requirements/`` without ``.txt``; None runs in the project's own environment
    environment: str | None = None
    caches: bool = False  # whether it can keep on the local drive what it has fetched
    options: dict[str, Any] = field(default_factory=dict)  # settings that its program knows
    note: str = ""  # what a reader must know
    resumes: bool = False  # whether it has a state to go on from in the middle of an epoch
    writes_beside: bool = False  # whether it puts files of its own beside the objects: it gets objects for itself, then

    @property
    def is_ours(self) -> bool:
        """Whether it is what the others are compared with."""
        return self.program == "ours"

    @property
    def epochs(self) -> tuple[str, ...]:
        """Kinds of epochs that it has a turn in."""
        return ("cold", "warm") if self.caches else ("cold",)

    @property
    def reads_files(self) -> bool:
        """Whether it reads the photographs themselves, on the local drive."""
        return self.options.get("client") == "files"


OURS = "ours"
PEERS = tuple(
    Peer(**entry) for entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["peer"]
)


def find(name: str) -> Peer:
    """Returns the peer of that name."""
    return next(peer for peer in PEERS if peer.name == name)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured together: every peer does this, in turn."""

    kind: str  # ``raw`` or ``decoded``
    latency_ms: int
    workers: int  # worker processes, or threads

    def __str__(self) -> str:
        return f"{self.kind}:{self.latency_ms}:{self.workers}"


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int = 3_200  # cut; the decoded cells read these
    raw_bytes: int = 1_000_000_000  # size that they are repeated to for the raw cells
    # The first is the one of the headline, decoding, one worker and resuming.
    latencies_ms: tuple[int, ...] = (30, 5, 130)
    num_rounds: int = 5  # of each cell
    batch_size: int = 128
    limit_s: float = 12.0  # when an epoch is cut short
    objects_limit_s: float = 20.0  # the same for those who read one object per image: they are slow and even
    workers: tuple[int, ...] = (2, 1)  # the first is the headline's
    num_counted: int = 2  # first cells in which requests and memory are looked at
    resident: bool = True  # whether real memory is put behind the page cache before each epoch
    only: tuple[Cell, ...] = ()  # of all cells; none for all

    def cells(self) -> list[Cell]:
        """Returns the cells in the order of measuring: those of the headline first."""
        first = self.latencies_ms[0]
        return [
            Cell("raw", first, self.workers[0]),
            Cell("decoded", first, self.workers[0]),
            *(Cell("raw", latency, self.workers[0]) for latency in self.latencies_ms[1:]),
            *(Cell(kind, first, workers) for workers in self.workers[1:] for kind in ("raw", "decoded")),
        ]

    def measures(self, cell: Cell) -> bool:
        """Returns whether that cell is to be measured."""
        return not self.only or cell in self.only

    def has_turn(self, peer: Peer, cell: Cell) -> bool:
        """Returns whether a peer has a turn in a cell: latency is nothing to the local drive, so once is enough."""
        return peer.place != "local" or cell.latency_ms == self.latencies_ms[0]


FULL, QUICK = (
    Load(),
    Load(60, 1, (5,), 1, 16, limit_s=6.0, objects_limit_s=6.0, workers=(2,), num_counted=1, resident=False),
)
