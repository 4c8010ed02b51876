"""What `.ci/run` asks Debian for before it runs the checks, on machines that have more or less of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

RUN = Path(__file__).parents[1] / ".ci" / "run"
PROGRAMS = {"mkfs.xfs", "mdadm", "busybox", "qemu-system-x86_64"}
IS_ROOT = os.geteuid() == 0


def run_ci(tmp_path: Path, *, programs: set[str], kernel: bool, lists: bool) -> tuple[int, list[str]]:
    """Runs it where nothing is on PATH but stand-ins that say how they were called; returns status and calls."""
    folder, cache = tmp_path / "bin", tmp_path / "cache"
    folder.mkdir()
    for name in ("bash", "env", "dirname"):
        (folder / name).symlink_to(shutil.which(name) or "")
    for name in {"go", "make", "apt-get", "apt-cache", *programs}:
        status = int(name == "apt-cache" and not lists)
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\nexit {status}\n')
        (folder / name).chmod(0o755)
    if kernel:
        boot = cache / "concurrent-loader" / "kernel" / "linux-image-6" / "boot"
        boot.mkdir(parents=True)
        (boot / "vmlinuz-6").touch()
    done = subprocess.run(
        [RUN], env={"PATH": str(folder), "XDG_CACHE_HOME": str(cache), "HOME": str(tmp_path)}, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    calls = tmp_path / "calls"
    return done.returncode, calls.read_text().splitlines() if calls.exists() else []


def test_a_machine_that_has_all_asks_for_nothing(tmp_path: Path) -> None:
    assert run_ci(tmp_path, programs=PROGRAMS, kernel=True, lists=False) == (
        0,
        ["make check", "make test test-all"],
    )


@pytest.mark.parametrize("lists", [False, True])
def test_a_kernel_that_is_to_be_unpacked_needs_lists_of_packages(tmp_path: Path, lists: bool) -> None:
    status, calls = run_ci(tmp_path, programs=PROGRAMS, kernel=False, lists=lists)
    if IS_ROOT:
        assert (status, calls) == (
            0,
            ["apt-get update -qq", "make check", "make test test-all"],
        )
    else:
        assert (status, calls[-1]) == (
            (0, "make test test-all") if lists else (1, "apt-cache show linux-image-cloud-amd64")
        )


def test_programs_that_are_missing_are_installed(tmp_path: Path) -> None:
    status, calls = run_ci(tmp_path, programs=PROGRAMS - {"mkfs.xfs"}, kernel=True, lists=False)
    if IS_ROOT:
        install = "apt-get install --yes -qq --no-install-recommends xfsprogs"
        assert (status, calls) == (
            0,
            ["apt-get update -qq", install, "make check", "make test test-all"],
        )
    else:
        assert (status, calls) == (1, [])
