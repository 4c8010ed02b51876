"""Mixes the images of a batch in pairs, together with their labels, as the last step before the model.

The pairs depend on positions in the batch. The amount of mixing is a hash of (seed, epoch, sample). A rank's batch is a
slice of the global batch. With an even number of samples per rank, every full batch therefore has the same pairs for
any number of ranks, and a resumed epoch repeats them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment.operation import check_probability, to_levels
from concurrent_loader.augment.random_draws import beta_quantile, uniforms
from concurrent_loader.batch.batch import Batch
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["CutMix", "MixUp", "MixUpOrCutMix", "partners"]

_NUM_DRAWS = 5  # whether to mix, which of the two ways, lam, center row, center column


def partners(num_samples: int) -> npt.NDArray[np.int64]:
    """Returns the position of each sample's partner: first and second are a pair, third and fourth, and so on.

    The last sample of an odd number is its own partner, and is not changed.
    """
    places = np.arange(num_samples)
    return np.where(places ^ 1 < num_samples, places ^ 1, places)


class _Pairwise(Protocol):
    """Defines the arguments that all mixing classes share."""

    @property
    def num_classes(self) -> int | None: ...
    @property
    def p(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def image(self) -> str: ...
    @property
    def label(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class MixUp:
    """Blends each image with its partner's: ``lam`` of its own pixels, ``1 - lam`` of the partner's.

    Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018. Each sample has its own ``lam``, drawn
    from Beta(alpha, alpha).

    Pass an instance to the loader as ``batch_transform``. It is called with a `Batch` on any device, with images of one
    size (n, C, H, W) and integer labels (n,). Images keep their dtype and layout.

    Args:
        alpha: Parameter of the beta distribution, positive. Near 0 almost nothing is mixed; 1 is uniform. Default 1.0.
        num_classes: Number of classes. Labels become (n, num_classes) float32 that sum to 1. With the default None,
            labels stay; the batch gets the partner's labels as ``label_b``, and ``lam``, (n,) float32, the share of the
            own label.
        p: Probability of mixing a sample. Default 1.0.
        seed: Seed of the random numbers. Default 0.
        image: Column of the images. Default ``"image"``.
        label: Column of the labels. Default ``"label"``.

    Raises:
        ConfigurationError: An argument is invalid. When called: the batch cannot be mixed.

    Thread-safety: Instances are immutable.

    Example:
        >>> from concurrent_loader import ConcurrentDataLoader, MixUp, RandomResizedCrop, ShardDataset
        >>> with ShardDataset("photos") as dataset:
        ...     loader = ConcurrentDataLoader(
        ...         dataset, 4, decode={"image": RandomResizedCrop(32)}, batch_transform=MixUp(num_classes=10)
        ...     )
        ...     next(iter(loader))["label"].shape
        torch.Size([4, 10])
    """

    alpha: float = 1.0
    num_classes: int | None = None
    p: float = 1.0
    seed: int = 0
    image: str = "image"
    label: str = "label"

    def __post_init__(self) -> None:
        _check(self, alpha=self.alpha)

    def __call__(self, batch: Batch) -> Batch:
        """Returns a copy of the batch with mixed images and labels."""
        return _mixed(batch, self, mixup=self.alpha, cutmix=self.alpha, cut_share=0.0)


@dataclass(frozen=True, kw_only=True)
class CutMix:
    """Replaces a rectangle of each image by its partner's pixels: ``1 - lam`` of the area, clipped to the image.

    Source: Yun et al., "CutMix", ICCV 2019. The center of the rectangle is anywhere in the image, and its aspect ratio
    is the image's. ``lam`` is then corrected to the share of pixels that were not replaced. Arguments and errors are
    those of `MixUp`.

    Example:
        >>> from concurrent_loader import CutMix
        >>> CutMix(alpha=1.0, num_classes=1000).num_classes
        1000
    """

    alpha: float = 1.0
    num_classes: int | None = None
    p: float = 1.0
    seed: int = 0
    image: str = "image"
    label: str = "label"

    def __post_init__(self) -> None:
        _check(self, alpha=self.alpha)

    def __call__(self, batch: Batch) -> Batch:
        """Returns a copy of the batch with mixed images and labels."""
        return _mixed(batch, self, mixup=self.alpha, cutmix=self.alpha, cut_share=1.0)


@dataclass(frozen=True, kw_only=True)
class MixUpOrCutMix:
    """Mixes each sample with either `MixUp` or `CutMix`, as training recipes for ImageNet do.

    Args:
        mixup_alpha: Parameter ``alpha`` of `MixUp`. Default 0.8.
        cutmix_alpha: Parameter ``alpha`` of `CutMix`. Default 1.0.
        cutmix_share: Probability that a mixed sample uses `CutMix`. Default 0.5.
        num_classes: Number of classes, as for `MixUp`. Default None.
        p: Probability of mixing a sample. Default 1.0.
        seed: Seed of the random numbers. Default 0.
        image: Column of the images. Default ``"image"``.
        label: Column of the labels. Default ``"label"``.

    Raises:
        ConfigurationError: An argument is invalid. When called: the batch cannot be mixed.

    Example:
        >>> from concurrent_loader import MixUpOrCutMix
        >>> MixUpOrCutMix(num_classes=1000, p=0.9).cutmix_share
        0.5
    """

    mixup_alpha: float = 0.8
    cutmix_alpha: float = 1.0
    cutmix_share: float = 0.5
    num_classes: int | None = None
    p: float = 1.0
    seed: int = 0
    image: str = "image"
    label: str = "label"

    def __post_init__(self) -> None:
        _check(self, mixup_alpha=self.mixup_alpha, cutmix_alpha=self.cutmix_alpha)
        check_probability("cutmix_share", self.cutmix_share)

    def __call__(self, batch: Batch) -> Batch:
        """Returns a copy of the batch with mixed images and labels."""
        return _mixed(batch, self, mixup=self.mixup_alpha, cutmix=self.cutmix_alpha, cut_share=self.cutmix_share)


def _check(how: _Pairwise, **alphas: float) -> None:
    for name, alpha in alphas.items():
        if not 0 < alpha < math.inf:
            raise ConfigurationError(f"{name} must be positive", got=alpha)
    check_probability("p", how.p)
    if how.num_classes is not None and not _is_integer(how.num_classes, 1):
        raise ConfigurationError("num_classes must be a positive integer", got=how.num_classes)
    if not _is_integer(how.seed, 0) or how.seed >= 2**64:
        raise ConfigurationError("seed must be an integer from 0 to 2**64 - 1", got=how.seed)


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _mixed(batch: Batch, how: _Pairwise, *, mixup: float, cutmix: float, cut_share: float) -> Batch:
    images, labels = _columns(batch, how)
    num = len(images)
    draws = uniforms(how.seed, batch.epoch, batch.sample_ids.numpy(), _NUM_DRAWS, use="mix")
    partner = partners(num)
    mixes = (draws[:, 0] < how.p) & (partner != np.arange(num))
    cuts = draws[:, 1] < cut_share
    lam = np.where(cuts, beta_quantile(draws[:, 2], cutmix), beta_quantile(draws[:, 2], mixup))
    lam = np.where(mixes, lam, 1.0)
    boxes = _boxes(lam, draws[:, 3:], images.shape[2], images.shape[3])
    height, width = boxes[:, 1] - boxes[:, 0], boxes[:, 3] - boxes[:, 2]
    lam = np.where(cuts, 1 - height * width / (images.shape[2] * images.shape[3]), lam)
    places = torch.from_numpy(partner).to(images.device, non_blocking=True)
    others = images[places]
    made = copy.copy(batch)
    blends = mixes & ~cuts
    result = images
    if blends.any():
        result = _blended(result, others, np.where(blends, lam, 1.0))
    if (mixes & cuts).any():
        boxes[~(mixes & cuts)] = 0
        result = _cut(result, others, boxes)
    made[how.image] = result
    share = torch.from_numpy(lam.astype(np.float32)).to(labels.device, non_blocking=True)
    made.update(_labels(labels, labels[places.to(labels.device)], share, how))
    return made


def _columns(batch: Any, how: _Pairwise) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(batch, Batch):
        raise ConfigurationError("only a Batch can be mixed: leave out collate_fn=", got=type(batch).__name__)
    images, labels = batch.get(how.image), batch.get(how.label)
    if not isinstance(images, torch.Tensor) or images.dim() != 4:
        raise ConfigurationError(
            "only images of one size can be mixed: pass a crop in decode=",
            column=how.image,
            got=type(images).__name__,
        )
    whole = isinstance(labels, torch.Tensor) and labels.dim() == 1 and not labels.dtype.is_floating_point
    if not isinstance(labels, torch.Tensor) or not whole:
        raise ConfigurationError("labels must be integers, one per sample", column=how.label)
    valid = batch.get(f"{how.label}_valid")
    if isinstance(valid, torch.Tensor) and valid.device.type == "cpu" and not valid.all():
        raise ConfigurationError(
            f"labels that are mixed must not be null: dataset.filter('{how.label} is not None')", column=how.label
        )
    if len(batch.sample_ids) != len(images):
        raise ConfigurationError("the batch needs one sample id per image", expected=len(images))
    return images, labels


def _boxes(lam: npt.NDArray[np.float64], middle: npt.NDArray[np.float64], height: int, width: int) -> npt.NDArray[Any]:
    """Returns top, bottom, left and right of the rectangles to replace: (n, 4) int64."""
    sides = np.array([height, width])
    half = (0.5 * np.sqrt(1 - lam)[:, None] * sides).astype(np.int64)
    center = (middle * sides).astype(np.int64)
    first, past = np.maximum(center - half, 0), np.minimum(center + half, sides)
    return np.stack([first[:, 0], past[:, 0], first[:, 1], past[:, 1]], axis=1)


def _blended(images: torch.Tensor, others: torch.Tensor, lam: npt.NDArray[np.float64]) -> torch.Tensor:
    share = torch.from_numpy(lam.astype(np.float32)).to(images.device, non_blocking=True).view(-1, 1, 1, 1)
    # Not in place: `others` may share the memory and is needed for the rectangles afterwards.
    values = (images.to(torch.float32) * share).add_(others.to(torch.float32) * (1 - share))
    return to_levels(values) if images.dtype == torch.uint8 else values.to(images.dtype)


def _cut(images: torch.Tensor, others: torch.Tensor, boxes: npt.NDArray[Any]) -> torch.Tensor:
    place = torch.from_numpy(boxes).to(images.device, non_blocking=True)
    top, bottom, left, right = (each.view(-1, 1) for each in place.unbind(1))
    down = torch.arange(images.shape[2], device=images.device)
    across = torch.arange(images.shape[3], device=images.device)
    rows, columns = (down >= top) & (down < bottom), (across >= left) & (across < right)
    return torch.where((rows[:, :, None] & columns[:, None, :]).unsqueeze(1), others, images)


def _labels(
    labels: torch.Tensor, others: torch.Tensor, lam: torch.Tensor, how: _Pairwise
) -> Mapping[str, torch.Tensor]:
    if how.num_classes is None:
        return {f"{how.label}_b": others, "lam": lam}
    if (
        labels.device.type == "cpu"
        and len(labels)
        and not 0 <= int(labels.min()) <= int(labels.max()) < how.num_classes
    ):
        raise ConfigurationError(
            "a label is not in the range of num_classes",
            column=how.label,
            expected=f"0 … {how.num_classes - 1}",
            got=(int(labels.min()), int(labels.max())),
        )
    soft = torch.zeros((len(labels), how.num_classes), device=labels.device)
    soft.scatter_add_(1, labels.to(torch.int64).unsqueeze(1), lam.unsqueeze(1))
    soft.scatter_add_(1, others.to(torch.int64).unsqueeze(1), (1 - lam).unsqueeze(1))
    return {how.label: soft}
