"""Foreign formats, one a file: each says which columns it has and yields samples for the writer."""

from storage.importers.image_folder import ImageFolder
from storage.importers.protocol import ImportedSample, Importer, ImportProblem, ImportScan

__all__ = ["ImageFolder", "ImportProblem", "ImportScan", "ImportedSample", "Importer"]
