from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from concurrent_loader.cli.app import app
from concurrent_loader.cli.options import client_for, options_for, store_options
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.stores import LocalStore, open_store


def picture(seed: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for name in ("cat", "dög"):
        (root / name).mkdir(parents=True)
        for number in range(20):
            (root / name / f"{number}.jpg").write_bytes(picture(number))
    return root


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def ingested(photos: Path, data: Path, *options: object) -> Result:
    result = run("ingest", "image-folder", photos, data, "--shard-size", "16KiB", "--workers", 1, *options)
    assert result.exit_code == 0, result.stderr
    return result


class TestIngest:
    def test_says_what_it_did(self, photos: Path, data: Path) -> None:
        (photos / "cat" / "notes.txt").write_text("x")
        result = ingested(photos, data)
        assert result.stdout.startswith("40 images, ")
        assert re.search(r"\(\d+ images/s, \d+\.\d MB/s\)", result.stdout)
        assert "snapshot 1" in result.stdout
        assert "1 other file was ignored" in result.stdout
        assert result.stderr == ""  # no bar where nobody watches

    def test_json(self, photos: Path, data: Path) -> None:
        facts = json.loads(ingested(photos, data, "--json").stdout)
        assert (facts["num_samples"], facts["snapshot"], facts["num_skipped"]) == (40, 1, 0)
        assert facts["dataset_num_shards"] > 1

    def test_a_bad_file_fails_by_name(self, photos: Path, data: Path) -> None:
        (photos / "cat" / "bad.jpg").write_bytes(b"\xff\xd8\xffxx")
        result = run("ingest", "image-folder", photos, data)
        assert result.exit_code == 1
        assert "cat/bad.jpg" in result.stderr
        assert "--on-error skip" in result.stderr
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""
        assert run("info", data).exit_code == 2

    def test_a_bad_file_is_skipped_and_listed(self, photos: Path, data: Path) -> None:
        (photos / "cat" / "bad.jpg").write_bytes(b"\xff\xd8\xffxx")
        result = ingested(photos, data, "--on-error", "skip")
        assert "1 file was skipped" in result.stderr
        assert "cat/bad.jpg" in result.stderr

    @pytest.mark.slow
    def test_names_that_cannot_be_keys_are_skipped_and_escaped(self, photos: Path, data: Path) -> None:
        Path(os.fsdecode(os.fsencode(photos / "cat") + b"/caf\xe9.jpg")).write_bytes(picture(1))
        (photos / "cat" / "a\nb.jpg").write_bytes(picture(1))
        (photos / "cat" / "loop.jpg").symlink_to("loop.jpg")
        (photos / "cat" / "\x1b[31mred.txt").write_bytes(b"not of this format")
        result = run("ingest", "image-folder", photos, data)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
        assert "--on-error skip" in result.stderr
        result = ingested(photos, data, "--on-error", "skip")
        assert "3 files were skipped" in result.stderr
        assert result.stdout.startswith("40 images")
        assert "1 other file was ignored" in result.stdout
        for name in (r"cat/caf\xe9.jpg: ", r"cat/a\nb.jpg: ", "cat/loop.jpg: a symbolic link leads nowhere"):
            assert name in result.stderr
        assert "control characters" in result.stderr
        kept = json.loads(run("info", data, "--json").stdout)["metadata"]["last_import"]
        assert {entry["name"] for entry in kept["skipped"]} == {
            r"cat/caf\xe9.jpg", r"cat/a\nb.jpg", "cat/loop.jpg"
        }  # fmt: skip
        assert run("verify", data).exit_code == 0
        assert run("info", data).exit_code == 0

    @pytest.mark.slow
    def test_snapshots(self, photos: Path, data: Path) -> None:
        ingested(photos, data)
        result = run("ingest", "image-folder", photos, data)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "append" in result.stderr
        ingested(photos, data, "--append", "--again")
        repeated = ingested(photos, data, "--append")
        assert repeated.stdout.startswith("nothing was added: ")
        assert "as snapshot 2" in repeated.stdout
        assert "--again" in repeated.stdout
        facts = json.loads(ingested(photos, data, "--append", "--json").stdout)
        assert (facts["repeats"], facts["num_samples"], facts["dataset_num_samples"]) == (True, 0, 80)
        ingested(photos, data, "--overwrite")
        facts = json.loads(run("info", data, "--json").stdout)
        assert (facts["snapshots"], facts["num_samples"]) == ([1, 2, 3], 40)
        assert json.loads(run("info", data, "--json", "--snapshot", 2).stdout)["num_samples"] == 80

    @pytest.mark.slow
    def test_order_and_classes(self, photos: Path, data: Path) -> None:
        for name, options in {"a": ("--no-shuffle",), "b": ("--seed", 1), "c": (), "d": ("--no-classes",)}.items():
            ingested(photos, data / name, *options)
        digests = {json.loads(run("info", data / name, "--json").stdout)["digest"] for name in "abcd"}
        assert len(digests) == 4
        assert "label" not in json.loads(run("info", data / "d", "--json").stdout)["columns"]

    @pytest.mark.parametrize(
        "args",
        [
            ("--shard-size", "big"),
            ("--on-error", "ignore"),
            ("--verify", "hope"),
            ("--in-flight", "0"),
            ("--client", "boto"),
            ("--append", "--overwrite"),
            ("--storage-option", "no equals sign"),
        ],
    )
    def test_options_that_cannot_work(self, photos: Path, data: Path, args: tuple[str, ...]) -> None:
        result = run("ingest", "image-folder", photos, data, *args)
        assert result.exit_code == 2
        assert result.stderr
        assert not data.exists()

    def test_a_source_that_is_not_there(self, tmp_path: Path, data: Path) -> None:
        result = run("ingest", "image-folder", tmp_path / "nothing", data)
        assert result.exit_code == 2
        assert "nothing" in result.stderr


class TestInfo:
    def test_for_people(self, photos: Path, data: Path) -> None:
        ingested(photos, data)
        out = run("info", data).stdout
        for word in (
            "samples    40",
            "image  jpeg",
            "label  int64",
            "0 (cat)  20   50.0%",
            "1 (dög)  20   50.0%",
            "snapshot   1 of 1",
            "0 to 1",
        ):
            assert word in out

    def test_for_programs(self, photos: Path, data: Path) -> None:
        ingested(photos, data)
        facts = json.loads(run("info", data, "--json").stdout)
        manifest = asyncio.run(load_manifest(LocalStore(data)))
        assert facts["digest"] == manifest.digest
        assert facts["columns"] == manifest.schema
        assert facts["metadata"]["classes"] == {"label": ["cat", "dög"]}
        assert facts["num_bytes"] == manifest.num_bytes

    def test_names_cannot_move_the_cursor(self, photos: Path, data: Path) -> None:
        (photos / "cat").rename(photos / "c\x9b2Jat")
        ingested(photos, data)
        assert "\x9b" not in run("info", data).stdout

    def test_nothing_there(self, data: Path) -> None:
        for command in ("info", "verify"):
            result = run(command, data)
            assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
            assert "no dataset here" in result.stderr

    def test_no_such_snapshot(self, photos: Path, data: Path) -> None:
        ingested(photos, data)
        result = run("info", data, "--snapshot", 9)
        assert (result.exit_code, result.stdout) == (2, "")


class TestVerify:
    @pytest.mark.slow
    def test_sound(self, photos: Path, data: Path) -> None:
        ingested(photos, data)
        result = run("verify", data)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "all digests agree; 4 shards, 1 bundle, 40 samples, " in result.stdout
        assert json.loads(run("verify", data, "--json").stdout)["ok"] is True

    @pytest.mark.slow
    def test_corrupt(self, photos: Path, data: Path) -> None:
        ingested(photos, data)
        shard = min(data.glob("shards/*.cls"))
        damaged = bytearray(shard.read_bytes())
        damaged[100] ^= 1
        shard.write_bytes(damaged)
        result = run("verify", data)
        assert result.exit_code == 1
        assert f"shards/{shard.name}, sample 0, column image: " in result.stdout
        report = json.loads(run("verify", data, "--json").stdout)
        assert report["ok"] is False
        assert {problem["shard"] for problem in report["problems"]} == {f"shards/{shard.name}"}

    def test_a_damaged_manifest(self, photos: Path, data: Path) -> None:
        ingested(photos, data)
        (data / "manifests" / "0000000001.clm").write_bytes(b"x" * 100)
        result = run("verify", data)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


def test_storage_options_have_types() -> None:
    given = ["anonymous=true", "max-connections=7", "secret_access_key=0123", "region=none", "part_bytes=8MiB", "x=a=b"]
    assert store_options(endpoint_url="http://x", region=None, profile=None, storage_option=given) == {
        "endpoint_url": "http://x",
        "anonymous": True,
        "max_connections": 7,
        "secret_access_key": "0123",
        "region": "none",
        "part_bytes": "8MiB",
        "x": "a=b",
    }


def test_options_are_for_the_end_that_has_them() -> None:
    for url in ("/data", "relative", "file:///data", "memory://x"):
        assert (options_for(url, {"region": "x"}), client_for(url, "native")) == ({}, "auto")
    assert (options_for("s3://b", {"region": "x"}), client_for("s3://b", "native")) == ({"region": "x"}, "native")


class TestProgram:
    def test_version(self) -> None:
        result = run("--version")
        assert result.exit_code == 0
        assert result.stdout.startswith("concurrent-loader")

    def test_debug_shows_where_it_came_from(self, data: Path) -> None:
        result = run("--debug", "info", data)
        assert result.exit_code == 2
        assert "Traceback" in result.stderr

    @pytest.mark.slow
    def test_help_of_everything(self) -> None:
        for command in ((), ("ingest",), ("ingest", "image-folder"), ("info",), ("verify",), ("s3",)):
            assert run(*command, "--help").exit_code == 0

    @pytest.mark.processes
    def test_starts_without_torch_and_without_clients(self) -> None:
        script = (
            "import sys, concurrent_loader.cli.app\n"
            "slow = {'torch', 'numpy', 'PIL', 'aiobotocore', 'obstore', 'fsspec', 'moto'} & set(sys.modules)\n"
            "sys.exit(f'imported {slow}' if slow else 0)\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True)

    @pytest.mark.processes
    def test_on_a_local_path(self, photos: Path, data: Path) -> None:
        def program(*args: object) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-W", "error", "-m", "concurrent_loader.cli.app", *map(str, args)]
            return subprocess.run(command, capture_output=True, text=True, check=False)

        done = program("ingest", "image-folder", photos, data)
        assert (done.returncode, done.stderr) == (0, "")
        done = program("verify", data)
        assert (done.returncode, done.stderr) == (0, "")
        done = program("info", data / "elsewhere")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: no dataset here")

    @pytest.mark.processes
    def test_an_interrupt_ends_it(self, tmp_path: Path, data: Path) -> None:
        script = (
            "import sys\n"
            "from concurrent_loader.storage.importers import ImageFolder\n"
            "async def stuck(self, onto=None):\n"
            "    import asyncio\n"
            "    print('stuck', flush=True)\n"
            "    await asyncio.Event().wait()\n"
            "ImageFolder.scan = stuck\n"
            "from concurrent_loader.cli.app import app\n"
            "app()\n"
        )
        command = [sys.executable, "-W", "error", "-c", script, "ingest", "image-folder", str(tmp_path), str(data)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "stuck\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (130, "", "interrupted\n")


@pytest.mark.s3
def test_s3(s3_bucket: Any, photos: Path) -> None:
    url = f"{s3_bucket.url}/photos"
    options = dict(s3_bucket.storage_options)
    flags = ["--endpoint-url", options.pop("endpoint_url")]
    for name, value in options.items():
        flags += ["--storage-option", f"{name}={value}"]
    result = run("ingest", "image-folder", photos, url, *flags)
    assert result.exit_code == 0, result.stderr
    assert run("verify", url, *flags, "--client", "aiobotocore").exit_code == 0
    for more in (("--append", "--again"), ("--append",)):
        again = run("ingest", "image-folder", photos, url, *more, *flags)
        assert again.exit_code == 0, again.stderr
    assert json.loads(run("info", url, "--json", *flags).stdout)["num_samples"] == 80

    async def damage() -> None:
        async with open_store(url, **s3_bucket.storage_options) as store:
            manifest = await load_manifest(store)
            key = manifest.shards[0].key
            data = bytearray((await store.get(key)).data)
            data[len(data) // 2] ^= 1
            await store.put(key, data)

    asyncio.run(damage())
    assert run("verify", url, *flags).exit_code == 1
    denied = run("info", url, *flags, "--storage-option", f"secret_access_key={uuid4().hex}")
    assert denied.exit_code == 2
    assert options["secret_access_key"] not in denied.stderr
    assert denied.stderr.count("\n") == 1


@pytest.mark.s3
@pytest.mark.parametrize("client", ["native", "aiobotocore", "fsspec"])
def test_no_value_of_a_storage_option_is_repeated(s3_bucket: Any, client: str) -> None:
    secret, token = uuid4().hex, uuid4().hex
    flags = ["--endpoint-url", s3_bucket.storage_options["endpoint_url"], "--client", client]
    for name, value in (("access_key_id", "somebody"), ("secret_access_key", secret), ("session_token", token)):
        flags += ["--storage-option", f"{name}={value}"]
    for more in ([], ["--storage-option", f"no_such_option={secret}"], ["--storage-option", f"region_{secret}"]):
        for command in (["info"], ["verify"], ["--debug", "info"]):
            result = run(*command, s3_bucket.url, *flags, *more)
            assert result.exit_code == 2
            assert secret not in result.output + result.stderr
            assert token not in result.output + result.stderr


@pytest.mark.processes
def test_a_reader_that_has_enough_is_no_error(photos: Path, data: Path) -> None:
    ingested(photos, data)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        program = "from concurrent_loader.cli.app import app; app()"
        done = subprocess.run(
            [sys.executable, "-c", program, "info", str(data)],
            stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
