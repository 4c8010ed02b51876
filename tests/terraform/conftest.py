"""The programs that check and apply terraform/: from PATH, or built and installed once at pinned versions."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from concurrent_loader.storage.testing import ToolUnavailable
from concurrent_loader.storage.testing.servers.build_tools import Tool, find_tool
from concurrent_loader.storage.testing.servers.user_dirs import cache_folder

IN_CI = os.environ.get("CI") == "true"
HERE = Path(__file__).parent
TERRAFORM = HERE.parents[1] / "terraform"

TFLINT = Tool(
    name="tflint",
    package="github.com/terraform-linters/tflint",
    module="github.com/terraform-linters/tflint",
    version="v0.64.0",
    module_sum="h1:v0KwryBjBeo79uqFrYQOllZk3l/nQvH/e4SZW45jhA8=",
    typical_build_s=70,
)
PROVIDER = Tool(
    name="terraform-provider-minio",
    package="github.com/aminueza/terraform-provider-minio/v3",
    module="github.com/aminueza/terraform-provider-minio/v3",
    version="v3.3.0",
    module_sum="h1:Ovs9UrNvVYBvgcjzfetZgZueoU1kAELvxjBolie8wAc=",
    typical_build_s=75,
    pins=HERE / "pins" / "terraform-provider-minio",
)
TOFU = Tool(
    name="tofu",
    package="github.com/opentofu/opentofu/cmd/tofu",
    module="github.com/opentofu/opentofu",
    version="v1.12.6",
    module_sum="h1:0VT4P8pMmGcCUnQ9JDrJ+Qg2d35Vzm4FFd/9+H7oF98=",
    typical_build_s=300,
    pins=HERE / "pins" / "tofu",
)
CHECKS = HERE / "pins" / "checks.txt"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what the collected tests need now: later it would be on the clock of the first of them."""
    needed = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    progress = reporter.write_line if reporter else None
    for fixture, find in FINDERS.items():
        if fixture in needed and not session.config.option.collectonly:
            with suppress(ToolUnavailable):  # the fixture will tell
                find(progress)


def find_terraform(progress: Callable[[str], None] | None) -> Path:
    on_path = shutil.which("terraform")
    return Path(on_path) if on_path is not None else find_tool(TOFU, progress=progress)


def find_checks(progress: Callable[[str], None] | None) -> Path:
    """A virtual environment of its own (checkov wants another boto3), made once; returns its folder of programs."""
    wanted = hashlib.sha256(CHECKS.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache_folder() / "checks" / wanted
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{wanted}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            if progress is not None:
                progress("installing checkov and shellcheck, once, about 90 s on two cores")
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True, symlinks=True)
            pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            done = subprocess.run(
                [*pip, "--require-hashes", "--only-binary", ":all:", "-r", CHECKS],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise ToolUnavailable(f"installing {CHECKS.name} failed: {done.stderr[-500:]}")
            (folder / "complete").touch()
    return folder / "bin"


def find_kernel(progress: Callable[[str], None] | None) -> Path:
    """Debian's kernel with its modules, unpacked from its package and not installed; and what it takes to boot it."""
    missing = [
        program for program in ("qemu-system-x86_64", "busybox", "mdadm", "mkfs.xfs") if not shutil.which(program)
    ]
    if missing or platform.machine() != "x86_64":
        raise ToolUnavailable(f"booting a machine in an emulator needs x86_64 and {', '.join(missing) or 'Debian'}")
    folder = cache_folder() / "kernel"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for known in sorted(folder.glob("*/boot/vmlinuz-*"), reverse=True):
            return known.parents[1]
        if progress is not None:
            progress("unpacking a kernel, once, about 10 s")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as scratch:
            try:
                said = run_apt("apt-cache", "depends", "linux-image-cloud-amd64", cwd=scratch)
                name = re.findall(r"Depends: (linux-image-\S+)", said)[0]
                run_apt("apt-get", "download", "-qq", name, cwd=scratch)
                (package,) = Path(scratch).glob("*.deb")
                run_apt("dpkg-deb", "--extract", str(package), "unpacked", cwd=scratch)
            except (OSError, IndexError, subprocess.SubprocessError) as error:
                raise ToolUnavailable("Debian's packages gave no kernel (apt-get update?)") from error
            return Path(scratch, "unpacked").rename(folder / name)


def run_apt(*command: str, cwd: str) -> str:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True, timeout=300).stdout


FINDERS: dict[str, Callable[[Callable[[str], None] | None], Path]] = {
    "terraform_program": find_terraform,
    "tflint_program": lambda progress: find_tool(TFLINT, progress=progress),
    "minio_provider": lambda progress: find_tool(PROVIDER, progress=progress),
    "checks": find_checks,
    "kernel": find_kernel,
}


def found(fixture: str) -> Path:
    """In CI what is missing fails the test, elsewhere it is skipped with what is missing."""
    try:
        return FINDERS[fixture](None)
    except ToolUnavailable as error:
        if IN_CI:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def terraform_program() -> Path:
    """Terraform from PATH, or else OpenTofu."""
    return found("terraform_program")


@pytest.fixture(scope="session")
def tflint_program() -> Path:
    return found("tflint_program")


@pytest.fixture(scope="session")
def minio_provider() -> Path:
    return found("minio_provider")


@pytest.fixture(scope="session")
def checks() -> Path:
    """The folder that checkov, shellcheck and hcl2tojson are in."""
    return found("checks")


@pytest.fixture(scope="session")
def kernel() -> Path:
    """The folder that a kernel's package is unpacked in."""
    return found("kernel")


@pytest.fixture(scope="session")
def terraform_folder() -> Path:
    return TERRAFORM


@pytest.fixture(scope="session")
def parsed(checks: Path) -> Callable[[Path], dict[str, Any]]:
    """Parses all of a folder's HCL: ``{"resource": [{type: {name: body}}, …], "variable": …}``."""

    def parse(folder: Path) -> dict[str, Any]:
        together: dict[str, Any] = {}
        for path in sorted(folder.glob("*.tf")):
            done = subprocess.run([checks / "hcl2tojson", path], capture_output=True, text=True, check=True, timeout=60)
            for kind, bodies in json.loads(done.stdout).items():
                together.setdefault(kind, []).extend(bodies)
        return together

    return parse
