"""What is changed at random in a picture, and by how much: pure functions of (seed, epoch, sample)."""

from concurrent_loader.augment.crops import CenterCrop, Crop, RandomResizedCrop
from concurrent_loader.augment.decoding import CroppingDecoder
from concurrent_loader.augment.draws import uniforms

__all__ = ["CenterCrop", "Crop", "CroppingDecoder", "RandomResizedCrop", "uniforms"]
