from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from concurrent_loader.device.staged_images import turn_upright


@pytest.mark.parametrize("orientation", range(1, 9))
def test_it_is_what_pillow_makes_of_it(orientation: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    expected = torch.from_numpy(np.asarray(ImageOps.exif_transpose(image)).copy()).permute(2, 0, 1)
    stored = torch.from_numpy(pixels).permute(2, 0, 1)
    assert torch.equal(turn_upright(stored, orientation), expected)
