"""Packs documents of different lengths into rows of one length, as a pure function of lengths and order. No I/O.

Documents are a stream in the order of the epoch. ``"split"`` cuts the stream into rows. ``"fit"`` rearranges it within
a window, so that rows end where documents end, and fills the rest of a row with padding.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.order.remembering import Remembering
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["Packed", "Rows"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of an epoch, as cuts of a stream of documents.

    Attributes:
        documents: (n,) int64, sample numbers in the order of the stream, each with at least one token.
        firsts: (n,) int64, first token of each document that belongs to this place of the stream.
        edges: (n + 1,) int64, number of tokens in the stream before each document, and in the whole stream.
        cuts: (num_rows + 1,) int64, number of tokens in the stream before each row, and in the whole stream.
    """

    documents: Indices
    firsts: Indices
    edges: Indices
    cuts: Indices

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def pieces(self, rows: Indices) -> tuple[Indices, Indices, Indices, Indices]:
        """Returns the pieces of documents in some rows, row by row.

        Args:
            rows: (r,) int64, numbers of rows.

        Returns:
            Documents, positions in ``rows``, first tokens and ends in the documents: (n,) int64 each.
        """
        begin, end = self.cuts[rows], self.cuts[rows + 1]
        low = np.searchsorted(self.edges[1:], begin, side="right")
        counts = np.searchsorted(self.edges[1:], end, side="left") + 1 - low
        position = np.repeat(np.arange(len(rows)), counts)
        place = np.arange(len(position)) + np.repeat(low - (np.cumsum(counts) - counts), counts)
        shift = self.firsts[place] - self.edges[place]
        start = np.maximum(begin[position], self.edges[place]) + shift
        stop = np.minimum(end[position], self.edges[place + 1]) + shift
        return self.documents[place], position, start, stop


class Packed(Remembering):
    """Packs documents of tokens into rows of exactly ``length`` tokens.

    The loader's ``batch_size`` is the number of rows per batch on each rank. Lengths come from the shards' indexes. See
    docs/how-to/text.md.

    Args:
        column: Column of tokens, of a type such as ``"int32[...]"``; each value is a document, (num_tokens,).
        length: Number of tokens in a row; default 4096.
        eos: Token that is added to the end of each document. Default: None, no token.
        packing: ``"split"`` (default) cuts the stream of documents into rows, so that a document may continue in the
            next row and only the last row of an epoch has padding. ``"fit"`` cuts only documents that are longer than a
            row, and fills the rest of a row with padding.
        window: Number of documents among which ``"fit"`` chooses; default 4096. A larger window wastes less.
        padding: Token that fills the rest of a row; default 0.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import NativeDataLoader, Packed, ShardDataset, ShardWriter
        >>> with ShardWriter("documents", columns={"tokens": "int32[...]"}) as writer:
        ...     for length in (3, 2, 4):
        ...         writer.write({"tokens": [length] * length})
        >>> with ShardDataset("documents") as dataset:
        ...     batch = next(iter(NativeDataLoader(dataset, 2, batching=Packed("tokens", 6, eos=0))))
        >>> batch["tokens"].tolist(), batch["tokens_seq_lens"].tolist()
        ([[3, 3, 3, 0, 2, 2], [0, 4, 4, 4, 4, 0]], [[4, 2], [1, 5]])
    """

    def __init__(
        self,
        column: str,
        length: int = 4096,
        *,
        eos: int | None = None,
        packing: Literal["split", "fit"] = "split",
        window: int = 4096,
        padding: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(column, str):
            raise ConfigurationError("Packed needs the name of a column of tokens", got=type(column).__name__)
        for name, value in {"length": length, "window": window}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} must be a positive integer", got=value)
        for name, token in {"eos": eos, "padding": padding}.items():
            if isinstance(token, bool) or not isinstance(token, int | None) or (token is None and name != "eos"):
                raise ConfigurationError(f"{name} must be a token, an integer", got=token)
        if packing not in ("split", "fit"):
            raise ConfigurationError("packing must be 'split' or 'fit'", got=packing)
        self.column, self.length, self.eos, self.padding = column, length, eos, padding
        self.packing: Literal["split", "fit"] = packing
        self.window = window
        self._parts: dict[int, Packed] = {}

    def part(self, number: int) -> Packed:
        """Returns the same packing for one dataset of a mixture. It remembers results of its own."""
        if number not in self._parts:
            self._parts[number] = Packed(
                self.column, self.length, eos=self.eos, packing=self.packing, window=self.window, padding=self.padding
            )
        return self._parts[number]

    def rows(self, order: Indices, lengths: Indices) -> Rows:
        """Returns the rows of an epoch.

        Args:
            order: (n,) int64, sample numbers in the order of the epoch.
            lengths: (num_samples,) int64, number of tokens of all samples, without `eos`.
        """
        sizes = lengths[order] + (self.eos is not None)
        order, sizes = order[sizes > 0], sizes[sizes > 0]
        if self.packing == "split":
            edges = _sums(sizes)
            cuts = np.append(np.arange(0, edges[-1], self.length), edges[-1])
            return Rows(order, np.broadcast_to(np.int64(0), order.shape), edges, cuts)
        # A document that is longer than a row is cut into full rows and a rest, each like a document of its own.
        counts = -(-sizes // self.length)
        firsts = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * self.length
        order, sizes = np.repeat(order, counts), np.minimum(np.repeat(sizes, counts) - firsts, self.length)
        turn, per_row = _fit(sizes, self.length, self.window)
        edges = _sums(sizes[turn])
        return Rows(order[turn], firsts[turn], edges, edges[_sums(per_row)])

    def fingerprint(self, lengths: Indices) -> int:
        """63-bit hash of everything that the rows and their contents depend on, besides the order."""
        facts = f"{self.column} {self.length} {self.eos} {self.padding} {self.packing}".encode()
        facts += f" {self.window}".encode() if self.packing == "fit" else b""
        return xxhash.xxh3_64_intdigest(facts + np.ascontiguousarray(lengths, "<i8").tobytes()) >> 1


def _sums(counts: Indices) -> Indices:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _fit(sizes: Indices, length: int, window: int) -> tuple[Indices, Indices]:
    """Assigns documents to rows: best fit, in descending order of size, one window after the other.

    Best fit fills a row as well as first fit, and finds it by one bisection. Rows follow each other in the order of
    their longest documents, and documents of a row in the given order, so that neither depends on the size.

    Returns:
        (n,) int64, documents row by row; and (num_rows,) int64, number of documents in each row.
    """
    row_of, num_rows = np.empty(len(sizes), np.int64), 0
    for start in range(0, len(sizes), window):
        part = sizes[start : start + window]
        turn = np.argsort(-part, kind="stable")
        rows, longest = _best_fit(part[turn].tolist(), length)
        places = turn[longest]  # of the longest document of each row
        rank = np.empty(len(places), np.int64)
        rank[np.argsort(places, kind="stable")] = np.arange(len(places))
        row_of[start + turn] = rank[rows] + num_rows
        num_rows += len(places)
    return np.argsort(row_of, kind="stable"), np.bincount(row_of, minlength=num_rows).astype(np.int64)


def _best_fit(sizes: list[int], length: int) -> tuple[list[int], list[int]]:
    """Returns the row of each document, and the first document of each row; sizes are in descending order."""
    rows: list[int] = []
    first: list[int] = []
    spaces: list[int] = []  # free tokens of rows that are not full, each number once, ascending
    with_space: dict[int, list[int]] = {}
    for document, size in enumerate(sizes):
        at = bisect_left(spaces, size)
        if at < len(spaces):
            space = spaces[at]
            row = with_space[space].pop()
            if not with_space[space]:
                del with_space[space], spaces[at]
        else:
            space, row = length, len(first)
            first.append(document)
        rows.append(row)
        if left := space - size:
            if left not in with_space:
                with_space[left] = []
                spaces.insert(bisect_left(spaces, left), left)
            with_space[left].append(row)
    return rows, first
