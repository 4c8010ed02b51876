"""Importers of other dataset formats, one per module; "Add an importer" in CONTRIBUTING.md lists the steps."""

from concurrent_loader.storage.importers.image_folder import ImageFolder
from concurrent_loader.storage.importers.protocol import ImportedSample, Importer, ImportProblem, ImportScan

__all__ = ["ImageFolder", "ImportProblem", "ImportScan", "ImportedSample", "Importer"]
