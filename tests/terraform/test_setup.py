"""The script of a machine's first boot, really run, with stand-ins for what would change the machine that tests it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "terraform" / "modules" / "aws" / "scripts" / "setup.sh"
SETTINGS = {
    "BUCKET": "training",
    "CACHE_DIR": "/nvme/cache",
    "DATASET_URL": "s3://training/photos",
    "MOUNT_POINT": "/nvme",
    "PACKAGE": "concurrent-loader==0.1.0",
    "REGION": "eu-west-1",
    "TRAINING_USER": "ubuntu",
    "WHEELS_PREFIX": "",
}
SAY = '#!/bin/bash\necho "$(basename "$0") $*" >>"$CALLS"\n'
PYTHON = (
    SAY
    + """
if [[ $1 == -m ]]; then
  mkdir -p "$3/bin"
  for name in pip concurrent-loader; do cp "$STAND_IN" "$3/bin/$name"; done
fi
"""
)
REFUSED = ("mountpoint", "vgs")  # nothing is mounted, and there is no volume group
DONE = ("systemctl", "sysctl", "apt-get", "aws", "runuser", "mdadm", "mkfs.xfs")


class Machine:
    """A folder in place of the root of a machine, and stand-ins in front of its programs."""

    def __init__(self, folder: Path) -> None:
        self.root, self.programs, self.calls = folder / "root", folder / "programs", folder / "calls"
        self.folder = folder
        self.root.mkdir()
        self.programs.mkdir()
        for name in DONE:
            self.stand_in(name, SAY)
        for name in REFUSED:
            self.stand_in(name, SAY + "exit 1\n")
        self.stand_in("python3.13", SAY + "exit 1\n")
        self.stand_in("python3.12", PYTHON)

    def stand_in(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def first_boot(self, **settings: str) -> list[str]:
        given = "".join(f"{name}='{value}'\n" for name, value in {**SETTINGS, **settings}.items())
        (self.folder / "settings").write_text(given)
        self.calls.write_text("")
        done = subprocess.run(
            ["/bin/bash", SCRIPT],
            env={
                "PATH": f"{self.programs}:/usr/bin:/bin",
                "TMPDIR": str(self.folder),
                "ROOT": str(self.root),
                "CONCURRENT_LOADER_SETTINGS": str(self.folder / "settings"),
                "CALLS": str(self.calls),
                "STAND_IN": str(self.programs / "systemctl"),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return self.calls.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_package_comes_from_the_index(machine: Machine) -> None:
    calls = machine.first_boot()
    assert "pip install --quiet concurrent-loader==0.1.0" in calls
    assert not any(call.startswith(("aws", "apt-get")) for call in calls)
    assert f"python3.12 -m venv {machine.root}/opt/concurrent-loader" in calls


def test_or_from_wheels_in_the_bucket(machine: Machine) -> None:
    calls = machine.first_boot(WHEELS_PREFIX="wheels/0.1.0")
    (fetched,) = [call for call in calls if call.startswith("aws")]
    assert "--region eu-west-1 s3://training/wheels/0.1.0/" in fetched
    (installed,) = [call for call in calls if call.startswith("pip")]
    assert "--no-index --find-links" in installed
    assert not list(machine.folder.glob("tmp.*"))


def test_missing_tools_are_installed(machine: Machine) -> None:
    for name in ("mdadm", "mkfs.xfs"):
        (machine.programs / name).unlink()
        if any(os.access(Path(folder, name), os.X_OK) for folder in ("/usr/bin", "/bin")):
            machine.stand_in(name, SAY)  # here they lie where they cannot be hidden
    calls = machine.first_boot()
    missing = [
        package
        for program, package in (("mdadm", "mdadm"), ("mkfs.xfs", "xfsprogs"))
        if not (machine.programs / program).exists()
    ]
    expected = [f"apt-get install --yes -qq --no-install-recommends {' '.join(missing)}"] if missing else []
    assert [call for call in calls if call.startswith("apt-get install")] == expected


def test_the_drives_service_is_started_and_the_images_own_is_not(machine: Machine) -> None:
    calls = machine.first_boot()
    assert "systemctl mask --now dlami-nvme.service" in calls
    assert calls.index("systemctl daemon-reload") < calls.index("systemctl enable --now concurrent-loader-nvme.service")


def test_a_machine_whose_drives_are_taken_is_still_set_up(machine: Machine) -> None:
    machine.stand_in("systemctl", SAY + "[[ $1 != enable ]]\n")
    assert any(call.startswith("pip install") for call in machine.first_boot())


def test_a_shell_knows_where_things_are(machine: Machine) -> None:
    machine.first_boot()
    profile = machine.root / "etc" / "profile.d" / "concurrent-loader.sh"
    assert profile.stat().st_mode & 0o777 == 0o644
    said = subprocess.run(
        ["bash", "-c", f'. {profile}; echo "$AWS_REGION $CONCURRENT_LOADER_URL $CONCURRENT_LOADER_CACHE_DIR $PATH"'],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout.split()
    assert said == ["eu-west-1", "s3://training/photos", "/nvme/cache", "/opt/concurrent-loader/bin:/usr/bin:/bin"]


def test_limits_are_raised(machine: Machine) -> None:
    calls = machine.first_boot()
    limits = (machine.root / "etc" / "security" / "limits.d" / "60-concurrent-loader.conf").read_text()
    assert "ubuntu soft nofile 65536" in limits
    assert f"sysctl --quiet --load {machine.root}/etc/sysctl.d/60-concurrent-loader.conf" in calls


def test_doctor_has_the_last_word(machine: Machine) -> None:
    machine.stand_in("runuser", SAY + "exit 1\n")  # whatever it says
    last = machine.first_boot()[-1]
    assert last.startswith("runuser --user ubuntu -- ")
    assert last.endswith(f"doctor --terraform {machine.root}/etc/concurrent-loader/outputs.json")


def test_asked_again_it_does_the_same(machine: Machine) -> None:
    assert machine.first_boot() == machine.first_boot()
