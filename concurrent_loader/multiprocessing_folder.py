"""multiprocessing's folder for the sockets of worker processes: found again after a process was killed, and deleted.

`multiprocessing` makes a folder ``pymp-…`` among the temporary files and deletes it when the process ends in order. A
process that is killed leaves it behind. So a process whose folder this module made notes in it who it is (process,
its start, the kernel's boot, the namespace of process numbers), and the next one deletes the folders of processes that
are gone. Other folders called ``pymp-…`` are left alone. Linux only; elsewhere nothing is noted or deleted.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import shutil
import stat
import tempfile
from multiprocessing import util
from pathlib import Path

import msgspec

__all__ = ["own_multiprocessing_folder"]

log = logging.getLogger(__name__)

_OWNER = "concurrent-loader-owner.json"
_MAX_OWNER_BYTES = 1000
_PROCESSES = Path("/proc")


class _Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pid: int
    birth: str
    boot: str
    namespace: str


def own_multiprocessing_folder() -> None:
    """Makes multiprocessing's folder of this process, if there is none yet, and deletes those of dead processes."""
    if multiprocessing.current_process()._config.get("tempdir") is not None:  # type: ignore[attr-defined]
        return  # made before, or by somebody else
    owner = _describe(os.getpid())
    if owner is None:
        return
    with contextlib.suppress(OSError):  # where it cannot be made, multiprocessing says so
        folder = Path(util.get_temp_dir())
        (folder / _OWNER).write_bytes(msgspec.json.encode(owner))
        _sweep(Path(tempfile.gettempdir()), owner)


def _sweep(where: Path, this: _Owner) -> None:
    for folder in where.glob("pymp-*"):
        try:
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            with (folder / _OWNER).open("rb") as file:
                owner = msgspec.json.decode(file.read(_MAX_OWNER_BYTES), type=_Owner)
        except (OSError, msgspec.MsgspecError):
            continue  # somebody else's, or gone
        is_visible = (owner.boot, owner.namespace) == (this.boot, this.namespace)
        if is_visible and _describe(owner.pid) != owner and not _has_open_sockets(folder):
            log.info("deleting %s, which process %d left that was killed", folder, owner.pid)
            shutil.rmtree(folder, ignore_errors=True)


def _describe(pid: int) -> _Owner | None:
    """Returns what tells a process from all others; None where there is none, or no ``/proc``."""
    try:
        facts = (_PROCESSES / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        boot = (_PROCESSES / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str((_PROCESSES / "self/ns/pid").readlink())
    except OSError:
        return None
    state, *_ = fields = facts.rpartition(")")[2].split()
    return None if state in "ZX" else _Owner(pid=pid, birth=fields[19], boot=boot, namespace=namespace)


def _has_open_sockets(folder: Path) -> bool:
    """Whether a process that outlived the folder's owner still listens there."""
    try:
        sockets = (_PROCESSES / "net/unix").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return True
    return f" {folder}{os.sep}" in sockets
