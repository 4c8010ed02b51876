from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from benchmarks.training import INPUT_SIZE, Trainer, augmentation, decode_rgb


def two_colours(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(count) % 2
    images = torch.randint(0, 60, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[labels == 1, 0] += 150
    return images, labels


@pytest.mark.slow
def test_it_learns_and_says_what() -> None:
    trainer = Trainer(2)
    images, labels = two_colours(16)
    for _ in range(20):
        trainer.step(images, labels)
    lesson = trainer.lesson()
    assert lesson.last_loss < 0.5 * lesson.first_loss
    assert lesson.accuracy > 0.9


def test_the_same_seed_starts_from_the_same_weights_and_leaves_torchs_generator_alone() -> None:
    images, labels = two_colours(8)
    torch.manual_seed(5)
    untouched = torch.rand(1)
    torch.manual_seed(5)
    first = Trainer(2, seed=1)
    assert torch.rand(1) == untouched
    assert first.step(images, labels) == pytest.approx(Trainer(2, seed=1).step(images, labels), rel=1e-5)
    assert first.step(images, labels) != Trainer(2, seed=2).step(images, labels)


def test_a_image_becomes_uint8_of_the_input_size() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (200, 150), (250, 20, 30)).save(buffer, "JPEG", quality=95)
    decoded = decode_rgb(buffer.getvalue())
    assert (decoded.dtype, tuple(decoded.shape)) == (torch.uint8, (3, 150, 200))
    assert decoded.float().mean((1, 2)).tolist() == pytest.approx([250, 20, 30], abs=4)
    augmented = augmentation()(decoded)
    assert (augmented.dtype, tuple(augmented.shape)) == (torch.uint8, (3, INPUT_SIZE, INPUT_SIZE))
