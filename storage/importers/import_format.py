"""Describes importers to the command line, without importing them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ImportFormat", "ImportOption"]


@dataclass(frozen=True, slots=True)
class ImportOption:
    """An option of one format.

    Attributes:
        name: Name of the constructor's argument; the option is spelled with dashes.
        help: Help text of the option.
        is_list: Whether the option may be repeated; the argument is then a list.
        is_stored: Whether the value is a path or a URL.

    Example:
        >>> from concurrent_loader.storage.importers import ImportOption
        >>> ImportOption("group", "Path of the group.").name
        'group'
    """

    name: str
    help: str
    is_list: bool = False
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class ImportFormat:
    """A format of `concurrent-loader ingest`.

    The class accepts the source, the keyword arguments ``columns``, ``drop``, ``client`` and ``storage_options``, and
    its options (str, None if not given).

    Attributes:
        name: Name on the command line.
        module: Name of the module in `concurrent_loader.storage.importers`.
        class_name: Name of the importer's class.
        help: Help text of the command.
        options: Further options.
        source: Description of the source for the help text.
        metavar: Name of the source in the help text.
        is_stored: Whether the source is a path or a URL.

    Example:
        >>> from concurrent_loader.storage.importers import FORMATS
        >>> [row.class_name for row in FORMATS if row.name == "tar"]
        ['TarFiles']
    """

    name: str
    module: str
    class_name: str
    help: str
    options: tuple[ImportOption, ...] = ()
    source: str = "File, or folder of files: path or URL."
    metavar: str = "SRC"
    is_stored: bool = True
