"""The script that makes one file system of a machine's local drives, really run: loop devices stand for the drives.

File systems, mounts and users are real. So is the array where the kernel has md; where it has not, a stand-in for mdadm
keeps the array's data on a loop device of its own.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

IN_CI = os.environ.get("CI") == "true"
SCRIPT = Path(__file__).parents[2] / "terraform" / "modules" / "aws" / "scripts" / "nvme.sh"
PROGRAMS = ("losetup", "mkfs.xfs", "blkid", "lsblk", "mountpoint", "runuser", "mount", "umount")
USER = "daemon"
DRIVE_BYTES = 320 << 20  # xfs takes no less than 300 MB
MDADM = """#!/usr/bin/env bash
set -euo pipefail
say() { echo "$*" >>"$CALLS"; }
case $1 in
  --assemble) say assemble; [[ -e $STATE ]] || exit 1; ln -sfn "$DEVICE" "$3" ;;
  --create) say create "${*: -3}"; touch "$STATE"; ln -sfn "$DEVICE" "$2" ;;
  --stop) say stop; rm -f "$2" ;;
  --zero-superblock) say zero; rm -f "$STATE" ;;
  *) exit 2 ;;
esac
"""


@dataclass
class Machine:
    """Some drives, and the script's settings and surroundings."""

    folder: Path
    stack: ExitStack
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def mount_point(self) -> Path:
        return self.folder / "nvme"

    @property
    def cache_dir(self) -> Path:
        return self.mount_point / "cache"

    def add_drive(self) -> Path:
        handle, name = tempfile.mkstemp(dir=self.folder)
        os.truncate(handle, DRIVE_BYTES)
        os.close(handle)
        device = command("losetup", "--find", "--show", name).strip()
        self.stack.callback(command, "losetup", "--detach", device)
        return Path(device)

    def boot(self, *drives: Path, expected: int = 0) -> str:
        settings = self.folder / "settings"
        lines = {
            "MOUNT_POINT": self.mount_point,
            "CACHE_DIR": self.cache_dir,
            "TRAINING_USER": USER,
            "DRIVES": " ".join(map(str, drives)),
        }
        settings.write_text("".join(f"{name}='{value}'\n" for name, value in lines.items()).replace("''''", "''"))
        done = subprocess.run(
            ["bash", SCRIPT],
            env={
                "PATH": os.environ["PATH"],
                "CONCURRENT_LOADER_SETTINGS": str(settings),
                "NVME_MODEL": "No Such Drive",
                **self.environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == expected, done.stderr
        return done.stderr

    def halt(self) -> None:
        """As a reboot does: what is mounted is not, what is on the drives stays."""
        command("umount", self.mount_point)

    def mounted(self) -> tuple[str, str, set[str]]:
        for line in Path("/proc/mounts").read_text().splitlines():
            device, place, kind, options, *_ = line.split()
            if place == str(self.mount_point):
                return device, kind, set(options.split(","))
        raise AssertionError("not mounted")


def command(*parts: object) -> str:
    return subprocess.run([str(part) for part in parts], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture
def machine() -> Iterator[Machine]:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        reason = f"needs root, loop devices and {', '.join(PROGRAMS)} (missing: {missing})"
        if IN_CI:
            raise AssertionError(reason)
        pytest.skip(reason)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)  # the training user has to get through
        machine = Machine(folder, stack)
        yield machine
        subprocess.run(["umount", machine.mount_point], capture_output=True, check=False)


@pytest.fixture
def calls(machine: Machine) -> Callable[[], list[str]]:
    """Puts the stand-in for mdadm in front; returns what it was asked for so far."""
    stand_in = machine.folder / "programs" / "mdadm"
    stand_in.parent.mkdir()
    stand_in.write_text(MDADM)
    stand_in.chmod(0o755)
    log = machine.folder / "calls"
    log.touch()
    machine.environment = {
        "PATH": f"{stand_in.parent}:{os.environ['PATH']}",
        "ARRAY": str(machine.folder / "array"),
        "CALLS": str(log),
        "STATE": str(machine.folder / "superblock"),
        "DEVICE": str(machine.add_drive()),
    }
    return lambda: log.read_text().splitlines()


@pytest.fixture
def array(machine: Machine, request: pytest.FixtureRequest) -> str:
    """The kernel's own array where it has them, the stand-in's otherwise; its device."""
    if Path("/proc/mdstat").exists() and shutil.which("mdadm") is not None:
        name = f"/dev/md/test-{os.getpid()}"
        machine.environment = {"ARRAY": name}
        machine.stack.callback(subprocess.run, ["mdadm", "--stop", name], capture_output=True, check=False)
        return name
    request.getfixturevalue("calls")
    return machine.environment["ARRAY"]


class TestOneDrive:
    def test_is_a_private_xfs_of_the_training_user(self, machine: Machine) -> None:
        drive = machine.add_drive()
        machine.boot(drive)
        device, kind, options = machine.mounted()
        assert (device, kind) == (str(drive), "xfs")
        assert {"noatime", "nodev", "nosuid"} <= options
        for folder in (machine.mount_point, machine.cache_dir):
            facts = folder.stat()
            assert facts.st_mode & 0o7777 == 0o700
            assert (facts.st_uid, facts.st_gid) == (pwd.getpwnam(USER).pw_uid, grp.getgrnam(USER).gr_gid)

    def test_asked_again_it_changes_nothing(self, machine: Machine) -> None:
        drive = machine.add_drive()
        machine.boot(drive)
        (machine.cache_dir / "shard").write_bytes(b"x" * 100_000)
        machine.boot(drive)
        assert (machine.cache_dir / "shard").stat().st_size == 100_000

    def test_a_reboot_keeps_the_cache(self, machine: Machine) -> None:
        drive = machine.add_drive()
        machine.boot(drive)
        (machine.cache_dir / "shard").write_bytes(b"x" * 100_000)
        machine.halt()
        assert "the cache of the last boot" in machine.boot(drive)
        assert (machine.cache_dir / "shard").stat().st_size == 100_000

    def test_a_stop_empties_the_drive_and_a_new_file_system_is_made(self, machine: Machine) -> None:
        drive = machine.add_drive()
        machine.boot(drive)
        (machine.cache_dir / "shard").write_bytes(b"x")
        machine.halt()
        with drive.open("r+b") as raw:
            raw.write(bytes(8 << 20))
        assert "made a file system" in machine.boot(drive)
        assert list(machine.cache_dir.iterdir()) == []

    def test_a_damaged_file_system_is_made_anew(self, machine: Machine) -> None:
        drive = machine.add_drive()
        machine.boot(drive)
        machine.halt()
        with drive.open("r+b") as raw:
            raw.seek(64)  # the label, by which it is recognised, lies behind; what is between is nonsense now
            raw.write(b"\xff" * 40)
        machine.boot(drive)
        assert machine.mounted()[1] == "xfs"

    def test_a_link_in_the_way_of_the_cache_leads_nowhere(self, machine: Machine) -> None:
        """The training user owns the mount: what it puts there must not make root create or open anything elsewhere."""
        drive, elsewhere = machine.add_drive(), machine.folder / "elsewhere"
        machine.boot(drive)
        machine.cache_dir.rmdir()
        machine.cache_dir.symlink_to(elsewhere)
        machine.boot(drive, expected=1)
        assert not elsewhere.exists()


class TestSeveralDrives:
    def test_are_one_file_system(self, machine: Machine, array: str) -> None:
        drives = [machine.add_drive() for _ in range(3)]
        machine.boot(*drives)
        device, kind, _ = machine.mounted()
        assert Path(device).resolve() == Path(array).resolve()
        assert kind == "xfs"

    def test_a_reboot_keeps_the_cache(self, machine: Machine, array: str) -> None:
        drives = [machine.add_drive() for _ in range(2)]
        machine.boot(*drives)
        (machine.cache_dir / "shard").write_bytes(b"x" * 100_000)
        machine.halt()
        assert "the cache of the last boot" in machine.boot(*drives)
        assert (machine.cache_dir / "shard").stat().st_size == 100_000

    def test_all_of_them_are_striped(self, machine: Machine, calls: Callable[[], list[str]]) -> None:
        drives = [machine.add_drive() for _ in range(2)]
        machine.boot(*reversed(drives))
        assert calls() == ["assemble", "zero", f"create --raid-devices=2 {drives[0]} {drives[1]}"]

    def test_an_array_without_the_cache_is_made_anew(self, machine: Machine, calls: Callable[[], list[str]]) -> None:
        drives = [machine.add_drive() for _ in range(2)]
        Path(machine.environment["STATE"]).touch()
        machine.boot(*drives)
        assert [call.split()[0] for call in calls()] == ["assemble", "stop", "zero", "create"]


class TestWhatIsNotTouched:
    def test_a_drive_that_is_mounted(self, machine: Machine) -> None:
        mine, other = machine.add_drive(), machine.add_drive()
        place = machine.folder / "other"
        place.mkdir()
        command("mkfs.xfs", "-q", other)
        command("mount", other, place)
        try:
            (place / "precious").write_text("x")
            assert "in use by something else" in machine.boot(mine, other)
            assert (place / "precious").read_text() == "x"
            assert machine.mounted()[0] == str(mine)
        finally:
            command("umount", place)

    def test_without_a_drive_nothing_is_mounted(self, machine: Machine) -> None:
        assert "no free instance-store drive" in machine.boot(expected=1)
        assert not machine.mount_point.exists()
