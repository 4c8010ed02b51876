"""The layout that ARCHITECTURE.md promises: no import cycle, a small root, files that can be read in one sitting."""

from __future__ import annotations

import ast
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"concurrent_loader": ROOT / "concurrent_loader", "concurrent_loader.storage": ROOT / "storage"}


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in FOLDERS.items():
        for file in sorted(folder.rglob("*.py")):
            if package == "concurrent_loader" and (folder / "storage") in file.parents:
                continue  # the link to storage/
            name = ".".join([package, *file.relative_to(folder).with_suffix("").parts])
            found[name.removesuffix(".__init__")] = file
    return found


MODULES = modules()


def imports(file: Path) -> set[str]:
    """Imported modules of the package, those for type checkers and inside functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(MODULES)


@pytest.mark.slow
def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: imports(file) - {name} for name, file in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_the_root_of_the_package_is_small() -> None:
    assert len(list((ROOT / "concurrent_loader").glob("*.py"))) <= 10


@pytest.mark.parametrize("name", MODULES)
def test_a_file_has_four_hundred_lines_at_most(name: str) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("source", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("*/*/*.c")))
def test_native_modules_built_by_a_later_python_run_on_an_earlier_one(source: str) -> None:
    """A "#" in a format of PyArg_ParseTuple or Py_BuildValue, compiled on Python 3.13, needs 3.13 at run time."""
    formats = re.findall(r'(?:PyArg_\w+|Py_BuildValue)\([^"]*"([^"]*)"', (ROOT / source).read_text())
    assert formats
    assert not [each for each in formats if "#" in each]
