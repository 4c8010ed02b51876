"""A virtual environment for each peer, because their dependencies exclude each other's and ours."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_INSTALL_S = 1800


class EnvironmentFailed(RuntimeError):
    """The packages could not be installed; the message has the end of what the installer said."""


def requirements_file(environment: str) -> Path:
    """The pinned packages of an environment."""
    return Path(__file__).parent / "requirements" / f"{environment}.txt"


def python_of(environment: str | None, folder: Path) -> str:
    """The interpreter of an environment, made now unless an earlier run has.

    With uv, if it is installed, all environments share the files of what they have in common (torch: 5 GB).
    """
    if environment is None:
        return sys.executable
    file = requirements_file(environment)
    digest = hashlib.sha256(file.read_bytes() + sys.version.encode()).hexdigest()[:12]
    final = folder / f"{environment}-{digest}"
    python = final / "bin" / "python"
    if (final / "finished").exists():
        return str(python)
    shutil.rmtree(final, ignore_errors=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    for command in _commands(final, python, file):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=_INSTALL_S
        )
        if done.returncode:
            said = done.stdout[-2000:].decode(errors="replace").strip()
            raise EnvironmentFailed(f"{' '.join(command)} ended with status {done.returncode}\n{said}")
    (final / "finished").touch()
    return str(python)


def _commands(final: Path, python: Path, file: Path) -> list[list[str]]:
    if find_spec("uv") is not None:
        uv = [sys.executable, "-m", "uv"]
        install = [*uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
        return [
            [*uv, "venv", "--quiet", "--python", sys.executable, str(final)],
            [*install, "--requirements", str(file)],
        ]
    return [
        [sys.executable, "-m", "venv", str(final)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(file)],
    ]
