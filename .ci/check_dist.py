"""Checks what `make dist` built: `python .ci/check_dist.py FOLDER`, from the environment that has the dependencies.

Installs the wheel into a fresh environment and uses it from a folder with a user's own ``storage.py``. The PATH has no
compiler. A ``.pth`` file adds the dependencies of the environment that runs this program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

PROGRAM = """
import io, sys, tempfile

import storage
from PIL import Image

from concurrent_loader import ConcurrentDataLoader, RandomResizedCrop, ShardDataset
from concurrent_loader.decode import crop
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.lossless import has_native_lossless

if __name__ == "__main__":
    assert storage.MINE, "the user's module is hidden"
    assert crop._native is not None and has_native_lossless(), "a native module is missing"
    stream = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(stream, "JPEG")
    url = tempfile.mkdtemp()
    with ShardWriter(url, columns={"image": "jpeg", "label": "int64"}) as writer:
        for number in range(16):
            writer.write({"image": stream.getvalue(), "label": number})
    for method in ("spawn", "forkserver"):
        loader = ConcurrentDataLoader(
            ShardDataset(url), batch_size=4, decode={"image": RandomResizedCrop(64)}, num_workers=1,
            multiprocessing_context=method,
        )
        labels = [label for batch in loader for label in batch["label"].tolist()]
        assert labels == list(range(16)), labels
"""


def main(folder: Path) -> None:
    """Raises AssertionError with what is wrong."""
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    check_source(source)
    check_wheel(wheel)
    with tempfile.TemporaryDirectory(prefix="check-dist-") as temporary:
        use(wheel, Path(temporary))
    print(f"{source.name} and {wheel.name} are whole, and the wheel works without a compiler")


def check_source(source: Path) -> None:
    """Checks that the source distribution builds without the tree: real files, headers included, no tests."""
    with tarfile.open(source) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    links = [name for name, member in members.items() if member.issym() or member.islnk()]
    assert not links, f"links in the source distribution: {links}"
    sources = (
        "batch/packed_rows.c", "decode/jpeg_crop.c", "storage/cache/file_reads.c", "storage/lossless/lossless_tiles.c",
    )  # fmt: skip
    needed = ("LICENSE", *(f"concurrent_loader/{name}" for name in sources))
    missing = [name for name in needed if name not in members]
    assert not missing, f"missing in the source distribution: {missing}"
    others = {name.split("/")[0] for name in members} & {"storage", "tests", "benchmarks", "terraform", "docs"}
    assert not others, f"the source distribution also has {others}"


def check_wheel(wheel: Path) -> None:
    """Checks that a wheel installs one package and names the systems that it runs on."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names if not name.split("/")[0].endswith((".dist-info", ".libs"))}
    assert top == {"concurrent_loader"}, f"top-level packages: {top}"
    assert len([name for name in names if name.endswith(".so") and ".libs/" not in name]) == 4, "native modules"
    assert "concurrent_loader/py.typed" in names, "py.typed is missing"
    assert sys.platform != "linux" or "manylinux" in wheel.name, f"{wheel.name} was not repaired"


def use(wheel: Path, folder: Path) -> None:
    """Installs a wheel into a fresh environment and trains from there."""
    environment = folder / "environment"
    venv.create(environment, with_pip=True, symlinks=True)
    python = environment / "bin" / "python"
    install = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        wheel,
    ]
    subprocess.run(install, check=True)
    packages = next((environment / "lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "storage.py").write_text("MINE = True\n")
    program = folder / "train.py"
    program.write_text(PROGRAM)
    clean = {"PATH": str(environment / "bin"), "HOME": os.environ.get("HOME", str(folder))}
    subprocess.run([python, program], check=True, cwd=folder, env=clean, timeout=300)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
