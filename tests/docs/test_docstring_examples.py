"""The examples in docstrings of public names are run, and every public class and function has one.

An example is a doctest in the section ``Example:`` of a docstring. It imports what it uses. It runs in a folder with

- ``photos/``, a dataset of 20 samples with the columns ``image`` (JPEGs of 64 × 48) and ``label`` (int64);
- ``images/``, an image folder of 6 JPEGs: ``images/cat/0.jpg`` to ``2.jpg``, and the same below ``images/dog``.
"""

from __future__ import annotations

import asyncio
import doctest
import enum
import importlib
import inspect
import io
from pathlib import Path
from typing import Any

import h5py  # noqa: F401 - starts a process when it is imported, which a fast test must not
import numpy as np
import pytest
from PIL import Image

from concurrent_loader.storage import ShardWriter

PACKAGES = (
    "concurrent_loader",
    "concurrent_loader.augment",
    "concurrent_loader.decode",
    "concurrent_loader.storage",
    "concurrent_loader.storage.importers",
    "concurrent_loader.storage.testing",
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public_names() -> dict[str, Any]:
    """Classes and functions by their shortest public name. Exceptions and type aliases need no example."""
    found: dict[int, tuple[str, Any]] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            is_error = inspect.isclass(value) and issubclass(value, BaseException)
            if (inspect.isclass(value) or inspect.isroutine(value)) and not is_error:
                found.setdefault(id(value), (f"{package}.{name}", value))
    return dict(sorted(found.values()))


PUBLIC = public_names()


def doctests(name: str) -> list[doctest.DocTest]:
    """The examples of a class with those of its methods, or of a function; those that it inherits are not its own."""
    tests = doctest.DocTestFinder(exclude_empty=True).find(PUBLIC[name], name, globs={"__name__": "__main__"})
    return [test for test in tests if test.examples]


WITH_EXAMPLE = [name for name in PUBLIC if doctests(name)]


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with ShardWriter(str(tmp_path / "photos"), columns={"image": "jpeg", "label": "int64"}) as writer:
        for number in range(20):
            writer.write({"image": jpeg(number), "label": number % 2})
    for number in range(6):
        path = tmp_path / "images" / ("cat", "dog")[number // 3] / f"{number % 3}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def marked(name: str) -> Any:
    """What shows a server in its example is a test that needs one."""
    code = "".join(example.source for test in doctests(name) for example in test.examples)
    uses_server = any(word in code for word in ("s3", "toxiproxy", "http_faults"))
    return pytest.param(name, marks=pytest.mark.s3) if uses_server else name


@pytest.mark.parametrize("name", [marked(name) for name in WITH_EXAMPLE])
def test_the_examples_run(name: str, here: Path) -> None:
    said: list[str] = []
    for test in doctests(name):
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append, clear_globs=False)
        for value in test.globs.values():
            if not inspect.isclass(value) and type(value).__module__.startswith("concurrent_loader"):
                close = getattr(value, "close", lambda: None)
                asyncio.run(close()) if inspect.iscoroutinefunction(close) else close()
    assert not said, "".join(said)


def test_every_public_class_and_function_has_an_example() -> None:
    without = {name for name in PUBLIC if name not in WITH_EXAMPLE and not is_enum(PUBLIC[name])}
    assert not without, f"give these an Example: section: {sorted(without)}"


def is_enum(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, enum.Enum)


def test_a_wrong_example_fails(here: Path) -> None:
    test = doctest.DocTestParser().get_doctest(">>> len([1, 2])\n3\n", {}, "wrong", None, None)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert "Expected:" in "".join(said)
