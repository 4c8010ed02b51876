"""Writes the golden tar files beside this file: `python tests/storage/adopt/golden/make_webdataset.py`.

It needs webdataset 1.0.2, Pillow, GNU tar, and for ``energon/`` megatron-energon 7.4.1, but nothing of this project.
``webdataset.json`` has what webdataset's own reader gives for each file: fields by name, in hexadecimal, and decoded
values of texts, numbers and arrays. Write the files again only to add a case.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from PIL import Image

FOLDER = Path(__file__).parent
LONG = "/".join(["a-folder-with-a-long-name"] * 8)


def image(format_: str, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (4, 6, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format_)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write_webdataset(path: Path) -> None:
    """Everything that TarWriter encodes itself, and images as bytes."""
    with path.open("wb") as file, webdataset.TarWriter(file, mtime=0) as writer:
        for at in range(3):
            writer.write(
                {
                    "__key__": f"train/{at:06d}",
                    "jpg": image("JPEG", at),
                    "seg.png": image("PNG", at),
                    "cls": at - 1,
                    "json": {"at": at, "text": "größer", "box": [1.5, at]},
                    "txt": f"caption {at}: 日本",
                    "npy": np.arange(3, dtype=np.float32) + at,
                    "tokens.npy": np.arange(at, dtype=np.int32),
                    "bin": bytes(range(at, at + 20)),
                    "id": f"id-{at}",
                }
            )


MEMBERS: list[tuple[str, bytes]] = [
    ("__meta__/readme.txt", b"skipped"),
    ("__info__.json", b"{}"),
    ("README", b"without a dot"),
    (".hidden.txt", b"hidden"),
    ("a.b/c/0001.JPG", b"\xff\xd8\xff\xe0 first"),
    ("a.b/c/0001.cls", b"1"),
    ("a.b/c/notes", b"in a sample, but not of it"),
    ("a.b/c/0001.seg.v2.PNG", b"\x89PNG\r\n\x1a\n"),
    ("ü/日本 1.jpg", b"\xff\xd8\xff\xe1 second"),
    ("ü/日本 1.cls", b" 2\n"),
    ("ü/日本 1.seg.v2.png", b""),
    (f"{LONG}/{'x' * 80}.jpg", b"\xff\xd8\xff\xe2 third"),
    (f"{LONG}/{'x' * 80}.cls", b"-3"),
    (f"{LONG}/{'x' * 80}.seg.v2.png", bytes(512)),
    ("dir/.dotted.jpg", b"its key is dir/"),
    ("../../etc/0.jpg", b"\xff\xd8\xff only a name"),
    ("/root/0.jpg", b"\xff\xd8\xff only a name"),
]


def write_tarfile(path: Path, format_: int) -> None:
    with tarfile.open(path, "w", format=format_) as tar:
        folder = tarfile.TarInfo("a.b/c")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in MEMBERS:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = 1.5 if format_ == tarfile.PAX_FORMAT else 1
            if format_ == tarfile.USTAR_FORMAT:
                info.name = name.replace(LONG, LONG[: 5 * 26 - 1])  # the longest that fits
            tar.addfile(info, io.BytesIO(data))


def write_gnu(path: Path, format_: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for at in range(3):
            for field, data in (("jpg", b"\xff\xd8\xff%d" % at), ("cls", b"%d" % at), ("txt", b"text %d\n" % at)):
                name = f"s{at}-{'long-' * 25 if format_ not in ('v7', 'ustar') else ''}.{field}"
                (Path(folder) / "shard" / name).parent.mkdir(exist_ok=True)
                (Path(folder) / "shard" / name).write_bytes(data)
        options = ["--sort=name", "--mtime=@1.5", "--owner=0", "--group=0", "--numeric-owner", "--blocking-factor=2"]
        subprocess.run(["tar", f"--format={format_}", *options, "-cf", path, "-C", folder, "shard"], check=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Returns what webdataset reads."""
    samples = []
    with path.open("rb") as file:
        decode = webdataset.autodecode.basichandlers
        files = webdataset.tariterators.tar_file_expander([{"url": "x", "stream": file}])
        for sample in webdataset.tariterators.group_by_keys(files):
            fields = {name: data for name, data in sample.items() if not name.startswith("__")}
            decoded = {}
            for name, data in fields.items():
                if name.rpartition(".")[2] in ("cls", "txt", "json", "npy") and sample["__key__"] != "dir/":
                    value = decode(name, data)
                    decoded[name] = [str(value.dtype), value.tolist()] if isinstance(value, np.ndarray) else value
            hexed = {name: data.hex() for name, data in fields.items()}
            samples.append({"key": sample["__key__"], "fields": hexed, "decoded": decoded})
    return samples


def write_energon(folder: Path) -> None:
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    for at in range(2):
        with tarfile.open(folder / f"shard-{at}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(at + 2):
                info = tarfile.TarInfo(f"{at}{number}.txt")
                info.size = 1
                tar.addfile(info, io.BytesIO(b"x"))
    WebdatasetPreparator.prepare_dataset(
        folder, ["shard-0.tar", "shard-1.tar"], split_parts_ratio=[("train", 1.0)], workers=1
    )
    for path in (folder / ".nv-meta").iterdir():
        if path.name != ".info.json":
            path.unlink()


def main() -> None:
    if sys.argv[1:] == ["energon"]:
        (FOLDER / "energon").mkdir(exist_ok=True)
        write_energon(FOLDER / "energon")
        return
    write_webdataset(FOLDER / "tarwriter.tar")
    write_tarfile(FOLDER / "ustar.tar", tarfile.USTAR_FORMAT)
    write_tarfile(FOLDER / "pax.tar", tarfile.PAX_FORMAT)
    write_tarfile(FOLDER / "gnu.tar", tarfile.GNU_FORMAT)
    for format_ in ("v7", "oldgnu", "gnu", "ustar", "posix"):
        write_gnu(FOLDER / f"gnu-tar-{format_}.tar", format_)
    expected = {path.name: read(path) for path in sorted(FOLDER.glob("*.tar"))}
    (FOLDER / "webdataset.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
