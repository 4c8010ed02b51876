from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from concurrent_loader.storage import unfinished
from concurrent_loader.storage.stores import LocalStore
from concurrent_loader.storage.unfinished import create_unfinished, sweep_unfinished

pytestmark = pytest.mark.usefixtures("no_leaks")


def killed_in_the_middle(folder: Path) -> None:
    """Leaves an unfinished object in a folder, as a process does that is killed while it writes one."""
    script = (
        "import asyncio, os, signal, sys\n"
        "from concurrent_loader.storage.stores import LocalStore\n"
        "from concurrent_loader.storage.stores.backends import local\n"
        "local._write_all = lambda file, data: (os.write(file, data[:5]), os.kill(os.getpid(), signal.SIGKILL))\n"
        "asyncio.run(LocalStore(sys.argv[1]).put('shards/x', b'0123456789'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.processes
def test_what_a_killed_writer_left_is_gone_after_the_next_write(tmp_path: Path) -> None:
    killed_in_the_middle(tmp_path)
    (left,) = os.listdir(tmp_path / "shards")
    assert left.startswith(".unfinished-")
    asyncio.run(LocalStore(tmp_path).put("shards/y", b"x"))
    assert os.listdir(tmp_path / "shards") == ["y"]


def test_what_is_being_written_stays(tmp_path: Path) -> None:
    file, path = create_unfinished(tmp_path)
    try:
        os.write(file, b"half")
        assert sweep_unfinished(tmp_path) == 0
        asyncio.run(LocalStore(tmp_path).put("other", b"x"))
        assert path.read_bytes() == b"half"
    finally:
        os.close(file)
    assert sweep_unfinished(tmp_path) == 1
    assert not path.exists()


def test_what_is_swept_away_before_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = unfinished.fcntl.flock
    swept: list[int] = []

    def late(file: int, how: int) -> None:
        if not swept:
            swept.append(1)
            swept.append(sweep_unfinished(tmp_path))
        flock(file, how)

    monkeypatch.setattr(unfinished.fcntl, "flock", late)
    file, path = create_unfinished(tmp_path)
    try:
        assert swept == [1, 1]
        assert os.listdir(tmp_path) == [path.name]
    finally:
        os.close(file)


def test_only_what_it_made_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = unfinished._machine()
    other = f"{int(machine, 16) ^ 1:08x}"
    names = {
        "old pid": f".unfinished-1234-{'0' * 16}",
        "other machine": f".unfinished-{other}-{'1' * 16}",
        "not ours": ".unfinished-business",
        "folder": f".unfinished-{machine}-{'2' * 16}",
        "link": f".unfinished-{machine}-{'3' * 16}",
        "pipe": f".unfinished-{machine}-{'4' * 16}",
    }
    for kind in ("old pid", "other machine", "not ours"):
        (tmp_path / names[kind]).write_bytes(b"x")
    (tmp_path / names["folder"]).mkdir()
    (tmp_path / names["link"]).symlink_to(names["not ours"])
    os.mkfifo(tmp_path / names["pipe"])
    assert sweep_unfinished(tmp_path) == 0
    yesterday = time.time() - 25 * 3600
    for kind in ("old pid", "other machine", "not ours"):
        os.utime(tmp_path / names[kind], (yesterday, yesterday))
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)  # another user's
        assert sweep_unfinished(tmp_path) == 0
    assert sweep_unfinished(tmp_path) == 2
    assert set(os.listdir(tmp_path)) == {names[kind] for kind in ("not ours", "folder", "link", "pipe")}
    assert sweep_unfinished(tmp_path / "missing") == 0
