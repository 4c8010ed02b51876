"""Who takes part in the peers' benchmark, from catalog.toml: which packages, which program, which settings."""

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
    environment: str | None
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
    def reads_files(self) -> bool:
        """Whether it reads the photographs themselves, on the local drive."""
        return self.options.get("client") == "files"


OURS = "ours"
_FILE = Path(__file__).with_suffix(".toml")
PEERS = tuple(
    Peer(**{"environment": None, **entry}) for entry in tomllib.loads(_FILE.read_text(encoding="utf-8"))["peer"]
)


def find(name: str) -> Peer:
    """Returns the peer of that name, or raises ValueError."""
    for peer in PEERS:
        if peer.name == name:
            return peer
    raise ValueError(f"no peer is called {name!r}; there are {', '.join(peer.name for peer in PEERS)}")
