"""Crops and augments images with random numbers that depend only on (seed, epoch, sample)."""

from concurrent_loader.augment.augment import Augment
from concurrent_loader.augment.blur import GaussianBlur
from concurrent_loader.augment.color import ColorJitter, RandomGrayscale
from concurrent_loader.augment.crop_decoder import CroppingDecoder
from concurrent_loader.augment.crop_protocol import Crop
from concurrent_loader.augment.crops import CenterCrop, RandomResizedCrop
from concurrent_loader.augment.flip import RandomHorizontalFlip, RandomVerticalFlip
from concurrent_loader.augment.linked import Linked
from concurrent_loader.augment.mixing import CutMix, MixUp, MixUpOrCutMix
from concurrent_loader.augment.normalize import Normalize, ToDtype
from concurrent_loader.augment.operation import Operation
from concurrent_loader.augment.random_draws import uniforms

__all__ = [
    "Augment",
    "CenterCrop",
    "ColorJitter",
    "Crop",
    "CroppingDecoder",
    "CutMix",
    "GaussianBlur",
    "Linked",
    "MixUp",
    "MixUpOrCutMix",
    "Normalize",
    "Operation",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "ToDtype",
    "uniforms",
]
