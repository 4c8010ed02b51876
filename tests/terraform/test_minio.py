"""The MinIO example, really applied: what it makes does what it says, twice the same, and goes away without a trace."""

from __future__ import annotations

import asyncio
import io
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiobotocore.session import AioSession
from botocore.credentials import Credentials
from PIL import Image
from typer.testing import CliRunner

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.cli.app import app
from concurrent_loader.storage import open_store
from concurrent_loader.storage.errors import AccessDenied
from concurrent_loader.storage.testing import LocalS3
from concurrent_loader.storage.testing.checks.secret_leaks import Canary
from concurrent_loader.storage.testing.servers.s3_requests import list_buckets

pytestmark = pytest.mark.long

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class Example:
    """A copy of the example, with a program to run and the environment that it runs in."""

    program: Path
    folder: Path
    environment: dict[str, str] = field(repr=False)

    def run(self, *arguments: str, expected: int = 0) -> str:
        done = subprocess.run(
            [self.program, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stdout

    def outputs(self) -> dict[str, Any]:
        return {name: facts["value"] for name, facts in json.loads(self.run("output", "-json")).items()}

    def options(self, who: str) -> dict[str, str]:
        outputs = self.outputs()
        return {
            **outputs["storage_options"],
            "access_key_id": outputs[f"{who}_access_key_id"],
            "secret_access_key": outputs[f"{who}_secret_access_key"],
        }


@pytest.fixture(scope="module")
def applied(
    terraform_program: Path,
    minio_provider: Path,
    terraform_folder: Path,
    s3_server: LocalS3,
    canary: Canary,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Example]:
    root = tmp_path_factory.mktemp("minio-local")
    ignored = shutil.ignore_patterns(".terraform*", "*.tfstate*")
    shutil.copytree(terraform_folder, root / "terraform", ignore=ignored)
    mirror = root / "mirror"
    settings = root / "settings.tfrc"
    settings.write_text(f'provider_installation {{\n  filesystem_mirror {{\n    path = "{mirror}"\n  }}\n}}\n')
    example = Example(
        terraform_program,
        root / "terraform" / "examples" / "minio-local",
        {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "CHECKPOINT_DISABLE": "1",
            "TF_IN_AUTOMATION": "1",
            "TF_CLI_ARGS": "-no-color",
            "TF_CLI_CONFIG_FILE": str(settings),
            "TF_VAR_endpoint_url": s3_server.endpoint_url,
            "TF_VAR_bucket": f"terraform-{secrets.token_hex(4)}",
            "MINIO_USER": s3_server.access_key_id,
            "MINIO_PASSWORD": s3_server.secret_access_key,
        },
    )
    example.run("get")
    # Which registry the name stands for is the program's own default: Terraform and OpenTofu have different ones.
    (address,) = set(re.findall(r"provider\[(\S+/aminueza/minio)\]", example.run("providers")))
    target = f"linux_{ARCHITECTURES[platform.machine()]}"
    place = mirror / address / "3.3.0" / target
    place.mkdir(parents=True)
    shutil.copy(minio_provider, place / "terraform-provider-minio_v3.3.0")
    example.run("init", "-input=false")
    planned = example.run("plan", "-input=false", "-out=plan")
    assert "9 to add, 0 to change, 0 to destroy" in planned
    example.run("apply", "-input=false", "plan")
    try:
        for who in ("reader", "writer"):
            canary.watch(example.options(who)["secret_access_key"])
        yield example
    finally:
        # The provider's own way of emptying a bucket (force_destroy) races with itself and may kill it, version 3.3.
        asyncio.run(empty(s3_server, example.environment["TF_VAR_bucket"]))
        example.run("destroy", "-auto-approve", "-input=false")


async def empty(server: LocalS3, bucket: str) -> None:
    """Deletes every version of every object."""
    keys = {"aws_access_key_id": server.access_key_id, "aws_secret_access_key": server.secret_access_key}
    client = AioSession().create_client("s3", endpoint_url=server.endpoint_url, region_name=server.region, **keys)
    async with client as s3:
        listed = await s3.list_object_versions(Bucket=bucket)
        for entry in [*listed.get("Versions", []), *listed.get("DeleteMarkers", [])]:
            await s3.delete_object(Bucket=bucket, Key=entry["Key"], VersionId=entry["VersionId"])


@pytest.fixture(scope="module")
def ingested(applied: Example, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data set's URL, after the writer has ingested 12 pictures into it by the command line."""
    photos = tmp_path_factory.mktemp("photos")
    for number in range(12):
        folder = photos / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG")
        (folder / f"{number}.jpg").write_bytes(file.getvalue())
    url = str(applied.outputs()["dataset_url"])
    options = [
        part for name, value in applied.options("writer").items() for part in ("--storage-option", f"{name}={value}")
    ]
    result = CliRunner().invoke(app, ["ingest", "image-folder", str(photos), url, *options])
    assert result.exit_code == 0, result.stderr
    return url


def test_a_second_plan_is_empty(applied: Example, ingested: str) -> None:
    applied.run("plan", "-input=false", "-detailed-exitcode", expected=0)


def test_the_reader_trains(applied: Example, ingested: str) -> None:
    with ShardDataset(ingested, storage_options=applied.options("reader")) as dataset:
        loader = ConcurrentDataLoader(dataset, batch_size=4, shuffle=True, decode={"image": "rgb"})
        labels = [label for batch in loader for label in batch["label"].tolist()]
    assert sorted(labels) == [0] * 6 + [1] * 6


async def test_the_reader_cannot_write_or_delete(applied: Example, ingested: str) -> None:
    async with open_store(ingested, client="aiobotocore", **applied.options("reader")) as store:
        with pytest.raises(AccessDenied):
            await store.put("intruder", b"x")
        (first, *_) = [entry async for entry in store.list("")]
        with pytest.raises(AccessDenied):
            await store.delete(first.key)


async def test_the_writer_cannot_delete(applied: Example, ingested: str) -> None:
    async with open_store(ingested, client="aiobotocore", **applied.options("writer")) as store:
        (first, *_) = [entry async for entry in store.list("")]
        with pytest.raises(AccessDenied):
            await store.delete(first.key)


async def test_neither_sees_what_lies_beside_the_prefix(applied: Example, ingested: str, s3_server: LocalS3) -> None:
    bucket = ingested.removesuffix("/photos")
    async with open_store(bucket, **s3_server.storage_options()) as store:
        await store.put("photos-private/key", b"secret")
    for who in ("reader", "writer"):
        async with open_store(f"{bucket}/photos-private", **applied.options(who)) as store:
            with pytest.raises(AccessDenied):
                await store.get("key")
            with pytest.raises(AccessDenied):
                [_ async for _ in store.list("")]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "put"),
    [(("--put",), 1, "fail"), ((), 0, None), (("--as", "writer", "--put"), 0, "ok")],
)
def test_doctor_reads_the_outputs(
    applied: Example, ingested: str, arguments: tuple[str, ...], exit_code: int, put: str | None
) -> None:
    quick = ("--probe-size", "0", "--sample-size", "4KiB", "--json")
    outputs = applied.run("output", "-json")
    result = CliRunner().invoke(app, ["doctor", "--terraform", "-", *arguments, *quick], input=outputs)
    assert result.exit_code == exit_code, result.output
    found = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert (found["list"]["level"], found["get"]["level"]) == ("ok", "ok")
    assert found.get("put", {}).get("level") == put
    if put == "ok":
        assert found["put"]["facts"] == {"deleted": False}


def test_the_environment_is_what_a_shell_needs(applied: Example) -> None:
    outputs, options = applied.outputs(), applied.options("reader")
    said = subprocess.run(
        [
            "bash",
            "-c",
            'eval "$LINES_TO_RUN"; echo "$AWS_ENDPOINT_URL $AWS_REGION $AWS_ACCESS_KEY_ID $AWS_SECRET_ACCESS_KEY"',
        ],
        env={"PATH": os.environ["PATH"], "LINES_TO_RUN": outputs["reader_environment"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout.split()
    assert said == [options[name] for name in ("endpoint_url", "region", "access_key_id", "secret_access_key")]


def test_the_administrator_is_not_in_the_state(applied: Example, s3_server: LocalS3) -> None:
    state = (applied.folder / "terraform.tfstate").read_text()
    assert s3_server.secret_access_key not in state


@pytest.mark.parametrize(
    ("variable", "value"),
    [("bucket", "Upper_Case"), ("prefix", "/photos"), ("prefix", "a//b"), ("endpoint_url", "http://user:word@host:1")],
)
def test_refuses_what_cannot_work(applied: Example, variable: str, value: str) -> None:
    applied.run("plan", "-input=false", f"-var={variable}={value}", expected=1)


def test_goes_away_without_a_trace(
    terraform_program: Path, applied: Example, s3_server: LocalS3, tmp_path: Path
) -> None:
    """A second copy under another name: made, filled, destroyed."""
    folder = tmp_path / "terraform"
    shutil.copytree(applied.folder.parents[1], folder, ignore=shutil.ignore_patterns("*.tfstate*", "plan"))
    name = f"gone-{secrets.token_hex(4)}"
    other = Example(
        terraform_program, folder / "examples" / "minio-local", {**applied.environment, "TF_VAR_bucket": name}
    )
    other.run("init", "-input=false")
    other.run("apply", "-auto-approve", "-input=false")
    keys = other.options("reader")
    administrator = Credentials(s3_server.access_key_id, s3_server.secret_access_key)
    assert name.encode() in list_buckets(s3_server.endpoint_url, administrator, region=s3_server.region).body
    other.run("destroy", "-auto-approve", "-input=false")
    assert name.encode() not in list_buckets(s3_server.endpoint_url, administrator, region=s3_server.region).body
    reader = Credentials(keys["access_key_id"], keys["secret_access_key"])
    assert list_buckets(s3_server.endpoint_url, reader, region=s3_server.region).code == "InvalidAccessKeyId"
