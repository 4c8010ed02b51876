"""On a Python without the GIL, importing the package does not bring it back."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("concurrent_loader/batch", "concurrent_loader/decode", "storage")
SOURCES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.c")]


@pytest.mark.fast
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_native_modules_declare_that_they_need_no_gil(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    assert "{Py_mod_gil, Py_MOD_GIL_NOT_USED}" in text
    assert not re.search(r"^static (Py\w+|int|long|char) \**\w+( = .*)?;", text, re.MULTILINE), "a global of Python's"


@pytest.mark.fast
def test_there_are_native_modules() -> None:
    assert {path.name for path in SOURCES} == {"file_reads.c", "jpeg_crop.c", "lossless_tiles.c", "packed_rows.c"}


CAN_BUILD = shutil.which("cc") is not None and Path(sysconfig.get_path("include"), "Python.h").exists()


@pytest.mark.fast
@pytest.mark.skipif(not CAN_BUILD, reason="needs a C compiler and Python's headers")
@pytest.mark.parametrize("name", ["batch._packed_rows", "storage.cache._reads", "storage.lossless._tiles"])
def test_native_modules_are_there_if_they_can_be_built(name: str) -> None:
    """Their own tests run without them, too, and would not notice that the build fails."""
    assert importlib.import_module(f"concurrent_loader.{name}")


# Defined only where it can run: a Python with the GIL cannot tell.
if sysconfig.get_config_var("Py_GIL_DISABLED"):

    def test_the_import_leaves_the_gil_off() -> None:
        program = (
            "import sys; from concurrent_loader import ConcurrentDataLoader, ShardDataset; "
            "from concurrent_loader.batch import _packed_rows; from concurrent_loader.decode import _jpeg_crop; "
            " from concurrent_loader.storage.cache import _reads; "
            "from concurrent_loader.storage.lossless import _tiles; "
            "raise SystemExit(sys._is_gil_enabled())"
        )
        subprocess.run([sys.executable, "-c", program], check=True)
