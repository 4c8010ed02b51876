"""The table of image formats, and how many files know a format by name."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

import concurrent_loader
from concurrent_loader.storage.images import COLUMN_FORMATS, FORMATS, IMAGE_SUFFIXES, ImageType, find_format
from concurrent_loader.storage.lossless import MAGIC

ROOT = Path(concurrent_loader.__file__).parent

STARTS = {
    "jpeg": b"\xff\xd8\xff\xe0",
    "png": b"\x89PNG\r\n\x1a\n",
    "webp": b"RIFF\4\0\0\0WEBP",
    "avif": b"\0\0\0\x20ftypmif1",
    "gif": b"GIF89a",
    "lossless": MAGIC,
}


def test_column_types_and_suffixes_come_from_the_table() -> None:
    files = tuple(name for name, row in FORMATS.items() if row.suffixes)
    assert get_args(ImageType) == ("image", *files)
    assert set(COLUMN_FORMATS) == {"image", "image/lossless", *files}
    assert COLUMN_FORMATS["image"] == files
    assert IMAGE_SUFFIXES == (".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif")


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_recognized_by_its_first_bytes(name: str) -> None:
    for data in (STARTS[name], STARTS[name] + bytes(100)):
        found = find_format(memoryview(data))
        assert found is not None
        assert found.name == name
    assert find_format(b"\0" + STARTS[name]) is None


def test_a_format_is_named_in_three_files() -> None:
    """CONTRIBUTING.md promises it: the table, the parser, and the libraries."""
    found = set()
    for path in [*ROOT.rglob("*.py"), *(ROOT / "storage").resolve().rglob("*.py")]:
        text = path.read_text()
        if "gif" not in text:
            continue
        constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        if "gif" in constants:
            found.add(path.name)
    assert found == {"formats.py", "gif_header.py", "libraries.py"}
