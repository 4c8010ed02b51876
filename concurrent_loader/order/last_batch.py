"""Names the treatments of the samples after the last full batch of an epoch."""

from __future__ import annotations

from typing import Literal

__all__ = ["LastBatch"]

LastBatch = Literal["drop", "short", "pad"]
