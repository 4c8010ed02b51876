import importlib
import importlib.metadata
import os
from pathlib import Path

import pytest

import concurrent_loader
from concurrent_loader import storage


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="elsewhere the tree is what is worked on")
@pytest.mark.parametrize("package", [storage, concurrent_loader])
def test_in_ci_the_installed_wheel_is_what_is_tested(package):
    assert package.__file__ is not None
    assert "site-packages" in Path(package.__file__).parts


def test_the_package_says_that_it_is_typed():
    assert Path(concurrent_loader.__file__).with_name("py.typed").exists()


def test_no_second_package_is_installed():
    """A user's own ``storage.py`` must not be in our way, nor ours in the user's."""
    files = importlib.metadata.files("concurrent-loader") or []
    assert {file.parts[0] for file in files if file.suffix in {".py", ".so", ".pyi"}} <= {"concurrent_loader"}


@pytest.mark.parametrize("package", [storage, concurrent_loader])
def test_every_public_name_is_there_and_every_error_is_public(package):
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
    errors = importlib.import_module(f"{package.__name__}.errors")
    assert set(errors.__all__) - set(package.__all__) <= {"WorkerTraceback"}  # a cause, which nobody catches
