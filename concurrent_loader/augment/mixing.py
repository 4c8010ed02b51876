"""Mixes the pictures of a batch in pairs, and their labels with them: the last thing before the model.

Who is mixed with whom depends on places in the batch, how far on the sample alone: its numbers are a hash of (seed,
epoch, sample). A rank's batch is a slice of the global one, so with an even number of samples a rank every full batch
has the same pairs however many ranks there are; and a resumed epoch has them again.
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

from concurrent_loader.augment.beta import beta_quantile
from concurrent_loader.augment.draws import uniforms
from concurrent_loader.augment.operation import check_probability, to_levels
from concurrent_loader.batch import Batch
from storage.errors import ConfigurationError

__all__ = ["CutMix", "MixUp", "MixUpOrCutMix", "partners"]

_NUM_DRAWS = 5  # whether, which of the two, how far, down, across


def partners(num_samples: int) -> npt.NDArray[np.int64]:
    """Whom each sample of a rank's batch is mixed with: the first with the second, the third with the fourth, …

    The last one of an odd number is its own partner, and so stays what it is.
    """
    places = np.arange(num_samples)
    return np.where(places ^ 1 < num_samples, places ^ 1, places)


class _Pairwise(Protocol):
    """What the three classes below have in common."""

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
    """Blends each picture with its partner's: ``lam`` of its own, ``1 - lam`` of the partner's.

    Source: Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018. Each sample has a ``lam`` of its own,
    drawn from Beta(alpha, alpha).

    Give it to the loader as ``batch_transform``. It gets a `Batch` with pictures of one size (n, C, H, W) and whole
    numbers (n,) as labels, on any device. Pictures keep their dtype and layout.

    Args:
        alpha: Of the beta distribution: near 0 nearly nothing is mixed, 1 is uniform.
        num_classes: Labels become (n, num_classes) float32 that sum to 1. None: the label stays; the partner's comes
            beside it as ``label_b``, with ``lam``, (n,) float32, the first one's share in the loss.
        p: Probability that a sample is mixed at all.
        seed: Of the draws.
        image: Column of the pictures.
        label: Column of the labels.

    Raises:
        ConfigurationError: An argument that cannot work; when called: a batch that cannot be mixed.

    Thread-safety: Nothing in it changes.
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
        """Returns the batch with other pictures and labels."""
        return _mixed(batch, self, mixup=self.alpha, cutmix=self.alpha, cut_share=0.0)


@dataclass(frozen=True, kw_only=True)
class CutMix:
    """Replaces a rectangle of each picture by its partner's: ``1 - lam`` of the area, as far as it lies within.

    Source: Yun et al., "CutMix", ICCV 2019. Its middle is anywhere in the picture, its shape the picture's; ``lam`` is
    then corrected to the pixels that were replaced. Everything else is as in `MixUp`.
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
        """Returns the batch with other pictures and labels."""
        return _mixed(batch, self, mixup=self.alpha, cutmix=self.alpha, cut_share=1.0)


@dataclass(frozen=True, kw_only=True)
class MixUpOrCutMix:
    """Mixes each sample by one of the two, as recipes for ImageNet do.

    Args:
        mixup_alpha: For `MixUp`.
        cutmix_alpha: For `CutMix`.
        cutmix_share: Probability that a sample that is mixed is cut, and not blended.
        num_classes: As for `MixUp`, like everything below.
        p: Probability that a sample is mixed at all.
        seed: Of the draws.
        image: Column of the pictures.
        label: Column of the labels.
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
        """Returns the batch with other pictures and labels."""
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
    pictures, labels = _columns(batch, how)
    num = len(pictures)
    draws = uniforms(how.seed, batch.epoch, batch.sample_ids.numpy(), _NUM_DRAWS, use="mix")
    partner = partners(num)
    mixes = (draws[:, 0] < how.p) & (partner != np.arange(num))
    cuts = draws[:, 1] < cut_share
    lam = np.where(cuts, beta_quantile(draws[:, 2], cutmix), beta_quantile(draws[:, 2], mixup))
    lam = np.where(mixes, lam, 1.0)
    boxes = _boxes(lam, draws[:, 3:], pictures.shape[2], pictures.shape[3])
    height, width = boxes[:, 1] - boxes[:, 0], boxes[:, 3] - boxes[:, 2]
    lam = np.where(cuts, 1 - height * width / (pictures.shape[2] * pictures.shape[3]), lam)
    places = torch.from_numpy(partner).to(pictures.device, non_blocking=True)
    others = pictures[places]
    made = copy.copy(batch)
    blends = mixes & ~cuts
    result = pictures
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
        raise ConfigurationError("only a Batch can be mixed; leave collate_fn out", got=type(batch).__name__)
    pictures, labels = batch.get(how.image), batch.get(how.label)
    if not isinstance(pictures, torch.Tensor) or pictures.dim() != 4:
        raise ConfigurationError(
            "only pictures of one size can be mixed: give the loader a crop",
            column=how.image,
            got=type(pictures).__name__,
        )
    whole = isinstance(labels, torch.Tensor) and labels.dim() == 1 and not labels.dtype.is_floating_point
    if not isinstance(labels, torch.Tensor) or not whole:
        raise ConfigurationError("labels must be whole numbers, one a sample", column=how.label)
    if len(batch.sample_ids) != len(pictures):
        raise ConfigurationError("the batch does not say which samples it has", expected=len(pictures))
    return pictures, labels


def _boxes(lam: npt.NDArray[np.float64], middle: npt.NDArray[np.float64], height: int, width: int) -> npt.NDArray[Any]:
    """Top, bottom, left and right of what is cut out: (n, 4) int64."""
    sides = np.array([height, width])
    half = (0.5 * np.sqrt(1 - lam)[:, None] * sides).astype(np.int64)
    centre = (middle * sides).astype(np.int64)
    first, past = np.maximum(centre - half, 0), np.minimum(centre + half, sides)
    return np.stack([first[:, 0], past[:, 0], first[:, 1], past[:, 1]], axis=1)


def _blended(pictures: torch.Tensor, others: torch.Tensor, lam: npt.NDArray[np.float64]) -> torch.Tensor:
    share = torch.from_numpy(lam.astype(np.float32)).to(pictures.device, non_blocking=True).view(-1, 1, 1, 1)
    # Not in place: others, which may be float32 already, are to be cut from afterwards.
    values = (pictures.to(torch.float32) * share).add_(others.to(torch.float32) * (1 - share))
    return to_levels(values) if pictures.dtype == torch.uint8 else values.to(pictures.dtype)


def _cut(pictures: torch.Tensor, others: torch.Tensor, boxes: npt.NDArray[Any]) -> torch.Tensor:
    place = torch.from_numpy(boxes).to(pictures.device, non_blocking=True)
    top, bottom, left, right = (each.view(-1, 1) for each in place.unbind(1))
    down = torch.arange(pictures.shape[2], device=pictures.device)
    across = torch.arange(pictures.shape[3], device=pictures.device)
    rows, columns = (down >= top) & (down < bottom), (across >= left) & (across < right)
    return torch.where((rows[:, :, None] & columns[:, None, :]).unsqueeze(1), others, pictures)


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
            "a label is no class",
            column=how.label,
            expected=f"0 … {how.num_classes - 1}",
            got=(int(labels.min()), int(labels.max())),
        )
    soft = torch.zeros((len(labels), how.num_classes), device=labels.device)
    soft.scatter_add_(1, labels.to(torch.int64).unsqueeze(1), lam.unsqueeze(1))
    soft.scatter_add_(1, others.to(torch.int64).unsqueeze(1), (1 - lam).unsqueeze(1))
    return {how.label: soft}
