"""The same script where nothing stands in for anything: a machine with three NVMe drives boots, twice, in an emulator.

The kernel is Debian's, with its md and xfs modules; the programs are this machine's own. The drives' model is the
emulator's instead of Amazon's.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "terraform" / "modules" / "aws" / "scripts" / "nvme.sh"
NUM_DRIVES = 3
DRIVE_BYTES = 200 << 20
BOOT_DEADLINE_S = 240  # some 15 s on an idle machine
PROGRAMS = (
    *("bash", "mdadm", "mkfs.xfs", "blkid", "lsblk", "mountpoint", "mount", "umount", "runuser"),
    *("basename", "chmod", "chown", "env", "mkdir", "sed", "sort", "tr"),
)
MODULES = ("drivers/md/md-mod", "drivers/md/raid0", "lib/libcrc32c", "fs/xfs/xfs")
PAM = "".join(f"{kind} required pam_permit.so\n" for kind in ("auth", "account", "session"))
INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /busybox /proc /sys /dev /run /tmp
/bin/busybox --install -s /busybox
export PATH=/usr/bin:/usr/sbin:/bin:/sbin:/busybox
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox mount -t tmpfs tmpfs /run
for module in md-mod raid0 libcrc32c xfs; do insmod /modules/$module.ko; done
export CONCURRENT_LOADER_SETTINGS=/etc/settings NVME_MODEL="QEMU NVMe Ctrl"
bash /nvme.sh
echo "RESULT status $?"
echo "RESULT mount $(grep ' /nvme ' /proc/mounts)"
echo "RESULT level $(cat /sys/block/md*/md/level) $(cat /sys/block/md*/md/raid_disks)"
echo "RESULT modes $(stat -c '%a %U' /nvme /nvme/cache | tr '\\n' ' ')"
echo "RESULT kept $(cat /nvme/cache/shard 2>/dev/null)"
echo "some bytes" >/nvme/cache/shard
bash /nvme.sh
echo "RESULT again $?"
umount /nvme
sync
poweroff -f
"""
# Emulated timers do not keep up with the kernel's check of them where the machine is busy.
COMMAND_LINE = "console=ttyS0 panic=-1 quiet no_timer_check"
SETTINGS = "MOUNT_POINT=/nvme\nTRAINING_USER=trainer\nCACHE_DIR=/nvme/cache\n"


@pytest.fixture
def initrd(kernel: Path, tmp_path: Path) -> Path:
    """All that the machine boots into, in memory."""
    root = tmp_path / "root"
    texts = {
        "init": INIT,
        "etc/settings": SETTINGS,
        "etc/passwd": "root:x:0:0::/:/bin/sh\ntrainer:x:1000:1000::/:/bin/sh\n",
        "etc/group": "root:x:0:\ntrainer:x:1000:\n",
        "etc/pam.d/runuser": PAM,
        "nvme.sh": SCRIPT.read_text(),
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "init").chmod(0o755)
    copy(Path("/bin/busybox"), root)
    for program in PROGRAMS:
        copy(Path(str(shutil.which(program))), root)
    (permit,) = Path("/lib").glob("*/security/pam_permit.so")
    copy(permit, root)
    (root / "modules").mkdir()
    (modules,) = (kernel / "lib" / "modules").iterdir()
    for module in MODULES:
        shutil.copy(modules / "kernel" / f"{module}.ko", root / "modules")
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    packed = subprocess.run(
        ["busybox", "cpio", "-o", "-H", "newc"],
        cwd=root,
        input=names.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    image = tmp_path / "initrd.gz"
    image.write_bytes(gzip.compress(packed.stdout, 1))
    return image


def copy(path: Path, root: Path) -> None:
    """Copies a file, and the libraries that it is linked with, to the same paths below a root."""
    linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=False, timeout=30).stdout
    for source in (str(path), *re.findall(r"(/\S+) \(0x", linked)):
        target = root / source.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(source, target)


def boot(kernel: Path, initrd: Path, drives: list[Path]) -> dict[str, str]:
    (image,) = (kernel / "boot").glob("vmlinuz-*")
    devices = [
        part
        for number, drive in enumerate(drives)
        for part in (
            *("-drive", f"file={drive},if=none,id=d{number},format=raw"),
            *("-device", f"nvme,serial=s{number},drive=d{number}"),
        )
    ]
    done = subprocess.run(
        [
            *("qemu-system-x86_64", "-accel", "tcg", "-m", "512", "-nodefaults", "-nographic", "-no-reboot"),
            *("-serial", "stdio", "-kernel", image, "-initrd", initrd, "-append", COMMAND_LINE),
            *devices,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=BOOT_DEADLINE_S,
    )
    results = dict(re.findall(r"^RESULT (\w+) (.*?)\s*$", done.stdout, re.MULTILINE))
    assert (results.get("status"), results.get("again")) == ("0", "0"), done.stdout + done.stderr
    return results


@pytest.mark.timeout(3 * BOOT_DEADLINE_S)
def test_three_drives_are_striped_at_the_first_boot_and_found_again_at_the_next(
    kernel: Path, initrd: Path, tmp_path: Path
) -> None:
    drives = [tmp_path / f"drive{number}" for number in range(NUM_DRIVES)]
    for drive in drives:
        drive.touch()
        os.truncate(drive, DRIVE_BYTES)
    first, second = (boot(kernel, initrd, drives) for _ in range(2))
    for results in (first, second):
        device, place, kind, options = results["mount"].split()[:4]
        assert (place, kind) == ("/nvme", "xfs")
        assert device.startswith("/dev/md")
        assert {"noatime", "nodev", "nosuid"} <= set(options.split(","))
        assert results["level"] == f"raid0 {NUM_DRIVES}"
        assert results["modes"] == "700 trainer 700 trainer"
    assert (first["kept"], second["kept"]) == ("", "some bytes")
