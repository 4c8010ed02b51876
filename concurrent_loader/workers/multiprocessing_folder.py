"""multiprocessing's folder for the sockets of worker processes: deletes those that killed processes left behind.

`multiprocessing` creates a temporary folder ``pymp-…`` and deletes it when the process exits normally. A killed process
leaves it behind. So this module writes the owner into the folder: process id, start time, the kernel's boot id and the
namespace of process ids. The next process deletes the folders of owners that no longer exist. Other folders called
``pymp-…`` are left alone. On systems other than Linux, this module does nothing.
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

__all__ = ["claim_multiprocessing_folder"]

log = logging.getLogger(__name__)

_OWNER = "concurrent-loader-owner.json"
_MAX_OWNER_BYTES = 1000
_PROCESSES = Path("/proc")


class _Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pid: int
    birth: str
    boot: str
    namespace: str


def claim_multiprocessing_folder() -> None:
    """Creates multiprocessing's folder for this process, and deletes those of dead processes."""
    if multiprocessing.current_process()._config.get("tempdir") is not None:  # type: ignore[attr-defined]
        return  # already created, perhaps by other code
    owner = _describe(os.getpid())
    if owner is None:
        return
    with contextlib.suppress(OSError):  # multiprocessing itself reports a folder that cannot be created
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
            continue  # not created by this module, or already deleted
        is_visible = (owner.boot, owner.namespace) == (this.boot, this.namespace)
        if is_visible and _describe(owner.pid) != owner and not _has_open_sockets(folder):
            log.info("deleting %s, left behind by killed process %d", folder, owner.pid)
            shutil.rmtree(folder, ignore_errors=True)


def _describe(pid: int) -> _Owner | None:
    """Returns the identity of a process; None if it does not exist, or without ``/proc``."""
    try:
        facts = (_PROCESSES / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        boot = (_PROCESSES / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str((_PROCESSES / "self/ns/pid").readlink())
    except OSError:
        return None
    state, *_ = fields = facts.rpartition(")")[2].split()
    return None if state in "ZX" else _Owner(pid=pid, birth=fields[19], boot=boot, namespace=namespace)


def _has_open_sockets(folder: Path) -> bool:
    """Returns whether a process that outlived the folder's owner still listens there."""
    try:
        sockets = (_PROCESSES / "net/unix").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return True
    return f" {folder}{os.sep}" in sockets
