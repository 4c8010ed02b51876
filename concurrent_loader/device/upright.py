"""Turns pictures upright where they are, on whatever device: for decoders that leave that to others."""

from __future__ import annotations

import torch

__all__ = ["turn_upright"]


def turn_upright(picture: torch.Tensor, orientation: int) -> torch.Tensor:
    """Undoes what a camera noted.

    Args:
        picture: (C, H, W) as stored.
        orientation: By EXIF, 1 … 8 (TIFF 6.0, tag 274: where the stored row 0 and column 0 belong).

    Returns:
        (C, H', W'); a view where nothing moves but rows and columns.
    """
    if orientation >= 5:
        picture = picture.transpose(1, 2)
    turned = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}.get(orientation)
    return picture if turned is None else picture.flip(turned)
