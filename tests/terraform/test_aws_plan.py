"""The parts of the AWS module that need no provider, by Terraform itself: variables, the guard, and user data."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

GOOD: dict[str, Any] = {"bucket": "training-data-1", "availability_zone": "us-east-1b"}
USER_DATA = """
output "user_data" {
  value = templatefile("${path.module}/user_data.sh.tftpl", {
    settings = base64encode("BUCKET='b'")
    profile  = base64encode("{}")
    nvme     = base64encode(file("${path.module}/scripts/nvme.sh"))
    service  = base64encode(file("${path.module}/scripts/concurrent-loader-nvme.service"))
    setup    = base64encode(file("${path.module}/scripts/setup.sh"))
  })
}

output "zipped" {
  value = base64gzip(templatefile("${path.module}/user_data.sh.tftpl", {
    settings = base64encode("BUCKET='b'")
    profile  = base64encode("{}")
    nvme     = base64encode(file("${path.module}/scripts/nvme.sh"))
    service  = base64encode(file("${path.module}/scripts/concurrent-loader-nvme.service"))
    setup    = base64encode(file("${path.module}/scripts/setup.sh"))
  }))
}
"""


@pytest.fixture
def terraform(terraform_program: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Terraform in a folder of the test's own, without any provider."""

    def run(*arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        (tmp_path / "terraform.tfvars.json").write_text(json.dumps(variables))
        return subprocess.run(
            [terraform_program, *arguments],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "CHECKPOINT_DISABLE": "1",
                "TF_CLI_ARGS": "-no-color",
                "TF_CLI_CONFIG_FILE": os.devnull,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def module(terraform_folder: Path) -> Path:
    return terraform_folder / "modules" / "aws"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "Training"),
        ("bucket", "with.dots"),
        ("bucket", "ab"),
        ("prefix", "/photos"),
        ("prefix", "photos/"),
        ("prefix", "a'; rm -rf /"),
        ("noncurrent_days", 0),
        ("noncurrent_days", 1.5),
        ("kms_key_arn", "alias/mine"),
        ("writer_principals", ["*"]),
        ("writer_principals", ["arn:aws:iam::123456789012:root"]),
        ("availability_zone", "us-east-1"),
        ("vpc_cidr", "10.0.0.0/8"),
        ("vpc_cidr", "all"),
        ("num_instances", -1),
        ("num_instances", 65),
        ("instance_type", "c7i.large"),
        ("instance_type", "g5g.xlarge"),
        ("ami_id", "latest"),
        ("ami_parameter", "/my/own"),
        ("root_volume_gib", 8),
        ("training_user", "root"),
        ("training_user", "a b"),
        ("cache_mount", "nvme"),
        ("cache_mount", "/a/../etc"),
        ("package", "concurrent-loader; reboot"),
        ("package", "--index-url=x"),
        ("wheels_prefix", "../x"),
    ],
)
def test_variables_refuse(terraform: Run, module: Path, tmp_path: Path, name: str, value: object) -> None:
    shutil.copy(module / "variables.tf", tmp_path)
    refused = terraform("plan", "-input=false", **{**GOOD, name: value})
    assert refused.returncode == 1
    assert f"var.{name}" in refused.stderr
    assert "Invalid value for variable" in refused.stderr


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"kms_key_arn": "arn:aws:kms:eu-central-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"},
        {"writer_principals": ["arn:aws:iam::123456789012:role/team/ingest", "arn:aws-cn:iam::123456789012:user/me"]},
        {"instance_type": "p5.48xlarge", "num_instances": 8, "availability_zone": "ap-northeast-1a"},
        {"package": "concurrent-loader[testing]==0.1.0", "wheels_prefix": "wheels/0.1.0"},
    ],
)
def test_variables_take(terraform: Run, module: Path, tmp_path: Path, values: dict[str, object]) -> None:
    shutil.copy(module / "variables.tf", tmp_path)
    taken = terraform("plan", "-input=false", **{**GOOD, **values})
    assert taken.returncode == 0, taken.stderr


def test_the_guard_refuses_what_would_destroy_the_bucket(terraform: Run, module: Path, tmp_path: Path) -> None:
    for name in ("variables.tf", "guard.tf"):
        shutil.copy(module / name, tmp_path)
    assert terraform("init", "-input=false", **GOOD).returncode == 0
    assert terraform("apply", "-auto-approve", "-input=false", **GOOD).returncode == 0
    for arguments, values in (
        (("destroy", "-auto-approve"), GOOD),
        (("apply", "-auto-approve"), {**GOOD, "bucket": "another-bucket"}),
        (("apply", "-auto-approve"), {**GOOD, "prevent_destroy": False}),
    ):
        refused = terraform(*arguments, "-input=false", **values)
        assert refused.returncode == 1
        assert "prevent_destroy" in refused.stderr
    # The way out that the README names.
    off = {**GOOD, "prevent_destroy": False}
    assert terraform("state", "rm", "terraform_data.guard", **off).returncode == 0
    assert terraform("destroy", "-auto-approve", "-input=false", **off).returncode == 0


def test_user_data(terraform: Run, module: Path, tmp_path: Path, checks: Path) -> None:
    shutil.copytree(module / "scripts", tmp_path / "scripts")
    shutil.copy(module / "user_data.sh.tftpl", tmp_path)
    (tmp_path / "outputs.tf").write_text(USER_DATA)
    assert terraform("apply", "-auto-approve", "-input=false").returncode == 0
    outputs = json.loads(terraform("output", "-json").stdout)
    script = tmp_path / "user_data.sh"
    script.write_text(outputs["user_data"]["value"])
    done = subprocess.run(
        [checks / "shellcheck", "--severity=style", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout
    zipped = base64.b64decode(outputs["zipped"]["value"])
    assert gzip.decompress(zipped).decode() == script.read_text()
    assert len(zipped) < 16 << 10  # as much as EC2 takes
