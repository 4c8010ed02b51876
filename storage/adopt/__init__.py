"""Adopts data of other formats in place: an index of virtual shards, whose payload stays where it is."""

from concurrent_loader.storage.adopt.adopt import adopt
from concurrent_loader.storage.adopt.convert import ConvertProgress, convert
from concurrent_loader.storage.adopt.report import AdoptPlan, AdoptProgress, AdoptReport

__all__ = ["AdoptPlan", "AdoptProgress", "AdoptReport", "ConvertProgress", "adopt", "convert"]
