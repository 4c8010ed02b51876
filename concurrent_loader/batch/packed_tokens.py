"""Puts pieces of documents into rows of tokens, and derives positions and masks from the lengths of the pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.batch.shared_memory import empty
from concurrent_loader.errors import CollateError
from concurrent_loader.order.packing import Packed
from concurrent_loader.order.protocol import Pieces

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

__all__ = ["PackedTokens", "pack"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedTokens:
    """Rows of packed documents, and what a model needs to keep the documents of a row apart.

    All results are on the device of ``seq_lens``. A part of a document that continues from the row before counts as a
    document of its own.

    Attributes:
        tokens: (N, L) integers.
        seq_lens: (N, D) int64, number of tokens of each document in a row, zeros after the last one. The rest of a row
            is padding.

    Example:
        >>> import torch
        >>> from concurrent_loader import PackedTokens
        >>> packed = PackedTokens(torch.tensor([[5, 6, 7, 8, 9, 0]]), torch.tensor([[3, 2]]))
        >>> packed.document_ids().tolist(), packed.positions().tolist()
        ([[0, 0, 0, 1, 1, -1]], [[0, 1, 2, 0, 1, 0]])
    """

    tokens: torch.Tensor
    seq_lens: torch.Tensor

    @classmethod
    def of(cls, batch: Mapping[str, Any], column: str = "tokens") -> Self:
        """Returns the packed column of a batch."""
        return cls(batch[column], batch[f"{column}_seq_lens"])

    def document_ids(self) -> torch.Tensor:
        """Returns the number of each token's document in its row, (N, L) int64; -1 for padding."""
        ends = self.seq_lens.cumsum(1)
        place = torch.arange(self.tokens.shape[1], device=ends.device).expand(self.tokens.shape).contiguous()
        ids = torch.searchsorted(ends, place, right=True)
        return torch.where(place < ends[:, -1:], ids, -1)

    def positions(self) -> torch.Tensor:
        """Returns the position of each token in its document, (N, L) int64, from 0; 0 for padding."""
        ids = self.document_ids()
        starts = self.seq_lens.cumsum(1) - self.seq_lens
        place = torch.arange(self.tokens.shape[1], device=ids.device)
        return torch.where(ids >= 0, place - starts.gather(1, ids.clamp(min=0)), 0)

    def cu_seqlens(self) -> torch.Tensor:
        """Returns the offsets of all documents in ``tokens.flatten()``, (D + 1,) int32, for flash-attention.

        The padding of a row counts as a document.
        """
        padding = self.tokens.shape[1] - self.seq_lens.sum(1, keepdim=True)
        lengths = torch.cat([self.seq_lens, padding], 1).flatten()
        ends = lengths[lengths > 0].cumsum(0).to(torch.int32)
        return torch.cat([ends.new_zeros(1), ends])

    def labels(self, ignore_index: int = -100) -> torch.Tensor:
        """Returns the token that follows each token in its document, (N, L) int64.

        Args:
            ignore_index: Label of the last token of each document and of padding; default that of
                `torch.nn.functional.cross_entropy`.
        """
        ids = self.document_ids()
        labels = torch.full(self.tokens.shape, ignore_index, dtype=torch.int64, device=self.tokens.device)
        follows = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] >= 0)
        labels[:, :-1] = torch.where(follows, self.tokens[:, 1:].to(torch.int64), ignore_index)
        return labels

    def block_mask(self) -> BlockMask:
        """Returns a causal mask within documents for `torch.nn.attention.flex_attention.flex_attention`."""
        from torch.nn.attention.flex_attention import create_block_mask  # its import takes long

        ids = self.document_ids()

        def is_visible(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (ids[row, query] == ids[row, key]) & (query >= key)

        rows, length = self.tokens.shape
        return create_block_mask(is_visible, rows, None, length, length, device=str(ids.device))


def pack(
    documents: Sequence[npt.NDArray[Any] | None],
    samples: npt.NDArray[np.int64],
    pieces: Pieces,
    packed: Packed,
    dtype: np.dtype[Any],
) -> dict[str, torch.Tensor]:
    """Puts pieces of documents into rows.

    Args:
        documents: Document of each piece, (num_tokens,). A null is a document without tokens.
        samples: (n,) int64, numbers of the documents, for errors.
        pieces: Places of the pieces.
        packed: Packing of the loader.
        dtype: Dtype of the documents.

    Returns:
        The column, (N, length) int32, or int64 for columns of uint32 and of 64 bits; and ``<column>_seq_lens``, (N, D)
        int64.

    Raises:
        CollateError: A document does not have the length that the shard's index says.
    """
    wide = dtype.itemsize == 8 or dtype == np.uint32
    nothing = np.empty(0, dtype)
    tokens = empty((pieces.num_rows, packed.length), torch.int64 if wide else torch.int32)
    rows = tokens.numpy()
    rows[...] = packed.padding
    counts = pieces.stop - pieces.start
    per_row = np.bincount(pieces.row, minlength=pieces.num_rows)
    within = np.arange(len(counts)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    seq_lens = np.zeros((pieces.num_rows, max(1, int(per_row.max(initial=0)))), np.int64)
    seq_lens[pieces.row, within] = counts
    offsets = np.cumsum(seq_lens, axis=1)[pieces.row, within] - counts
    for number, (row, offset, start, stop) in enumerate(
        zip(pieces.row.tolist(), offsets.tolist(), pieces.start.tolist(), pieces.stop.tolist(), strict=True)
    ):
        document = documents[number]
        piece = (nothing if document is None else document)[start:stop]
        end = offset + len(piece)
        if piece.ndim == 1:
            rows[row, offset:end] = piece
        missing = stop - start - len(piece)
        if piece.ndim != 1 or missing > (packed.eos is not None):
            raise CollateError(
                "a document must be one row of as many tokens as the shard's index says", column=packed.column,
                sample=int(samples[number]), got=None if document is None else document.shape,
            )  # fmt: skip
        if missing:
            rows[row, end] = packed.eos
    return {packed.column: tokens, f"{packed.column}_seq_lens": torch.from_numpy(seq_lens)}
