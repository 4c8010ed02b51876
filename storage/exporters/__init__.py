"""Exporters to other dataset formats, one per module; "Add an exporter" in CONTRIBUTING.md lists the steps."""

from concurrent_loader.storage.exporters.protocol import ExportColumn, ExportFormat, ExportSpec, FileWriter, WrittenFile

__all__ = [
    "ExportColumn",
    "ExportFormat",
    "ExportSpec",
    "FileWriter",
    "WrittenFile",
]
