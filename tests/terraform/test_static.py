"""terraform/ by its own tools: format, lint, policies, shell scripts."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

FOLDERS = ("modules/aws", "modules/minio", "examples/aws-multi-node", "examples/aws-single-gpu", "examples/minio-local")


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_these_are_all_folders(terraform_folder: Path) -> None:
    there = {str(path.parent.relative_to(terraform_folder)) for path in terraform_folder.glob("*/*/*.tf")}
    assert there == set(FOLDERS)


def test_is_formatted(terraform_program: Path, terraform_folder: Path) -> None:
    done = run(terraform_program, "fmt", "-check", "-recursive", "-diff", cwd=terraform_folder)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("folder", FOLDERS)
def test_tflint(tflint_program: Path, terraform_folder: Path, folder: str) -> None:
    config = terraform_folder / ".tflint.hcl"
    done = run(tflint_program, f"--config={config}", "--no-color", cwd=terraform_folder / folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_checkov_finds_nothing(checks: Path, terraform_folder: Path) -> None:
    """``--skip-download``: it is not to ask anybody for anything."""
    done = run(
        *(checks / "checkov", "--directory", ".", "--framework", "terraform", "--output", "json"),
        *("--compact", "--quiet", "--skip-download"),
        cwd=terraform_folder,
        LOG_LEVEL="ERROR",
    )
    report = json.loads(done.stdout)
    failed = [f"{check['check_id']} {check['resource']}" for check in report["results"]["failed_checks"]]
    assert not failed, failed
    assert report["summary"]["passed"] > 100
    assert done.returncode == 0, done.stderr


def test_each_suppression_has_its_reason(terraform_folder: Path) -> None:
    for path in terraform_folder.rglob("*.tf"):
        for line in path.read_text().splitlines():
            if "checkov:skip" in line:
                assert re.search(r"#checkov:skip=CKV2?_AWS_\d+:\S.{20,}$", line), f"{path}: {line}"


def test_scripts_pass_shellcheck(checks: Path, terraform_folder: Path) -> None:
    scripts = sorted((terraform_folder / "modules" / "aws" / "scripts").glob("*.sh"))
    assert [script.name for script in scripts] == ["nvme.sh", "setup.sh"]
    done = run(checks / "shellcheck", "--severity=style", *scripts, cwd=terraform_folder)
    assert done.returncode == 0, done.stdout
