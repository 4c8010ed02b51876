"""What is changed at random in a picture, and by how much: pure functions of (seed, epoch, sample)."""

from concurrent_loader.augment.augmentation import Augment
from concurrent_loader.augment.blur import GaussianBlur
from concurrent_loader.augment.color import ColorJitter, RandomGrayscale
from concurrent_loader.augment.crops import CenterCrop, Crop, RandomResizedCrop
from concurrent_loader.augment.decoding import CroppingDecoder
from concurrent_loader.augment.draws import uniforms
from concurrent_loader.augment.finish import Normalize, ToDtype
from concurrent_loader.augment.mirror import RandomHorizontalFlip, RandomVerticalFlip
from concurrent_loader.augment.mixing import CutMix, MixUp, MixUpOrCutMix
from concurrent_loader.augment.operation import Operation

__all__ = [
    "Augment",
    "CenterCrop",
    "ColorJitter",
    "Crop",
    "CroppingDecoder",
    "CutMix",
    "GaussianBlur",
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
