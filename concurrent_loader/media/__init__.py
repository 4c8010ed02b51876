"""Decodes audio and clips of videos, each a part of its file that is drawn for (seed, epoch, sample)."""

from concurrent_loader.media.audio import Audio
from concurrent_loader.media.clips import Clips
from concurrent_loader.media.part_decoder import PartDecoder, PartOf

__all__ = ["Audio", "Clips", "PartDecoder", "PartOf"]
