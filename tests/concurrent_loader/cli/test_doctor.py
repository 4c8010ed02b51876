from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from concurrent_loader.cli.app import app
from concurrent_loader.storage import open_store
from concurrent_loader.storage.testing import LocalS3
from concurrent_loader.storage.testing.checks.secret_leaks import Canary
from concurrent_loader.storage.testing.servers.minio_users import add_user, remove_user

NAMES = [
    "endpoint",
    "tls",
    "path style",
    "region",
    "clock",
    "credentials",
    "list",
    "get",
    "round trip",
    "throughput",
    "descriptors",
    "fork safety",
    "gpu",
    "decoder",
]
QUICK = ("--probe-size", "2MiB", "--sample-size", "4KiB")


@dataclass(frozen=True)
class Filled:
    """A bucket with objects in it, at a server."""

    url: str
    server: LocalS3

    def run(self, *arguments: object, server: LocalS3 | None = None) -> Result:
        options = (server or self.server).storage_options()
        keys = [part for name, value in options.items() for part in ("--storage-option", f"{name}={value}")]
        return run(self.url, *keys, *arguments)

    def findings(self, *arguments: object, server: LocalS3 | None = None, expected: int = 0) -> dict[str, Any]:
        result = self.run(*arguments, "--json", server=server)
        assert result.exit_code == expected, result.output
        report = json.loads(result.stdout)
        assert report["ok"] == (expected == 0)
        return {finding["name"]: finding for finding in report["findings"]}


def run(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments), *QUICK], input=stdin)


@pytest.fixture
async def filled(s3_server: LocalS3) -> Filled:
    url = s3_server.make_bucket(f"doctor-{secrets.token_hex(6)}") + "/photos"
    async with open_store(url, **s3_server.storage_options()) as store:
        for number in range(4):
            await store.put(f"shards/{number}", bytes(1 << 20))
    return Filled(url, s3_server)


def test_a_healthy_bucket(filled: Filled, tmp_path: Path) -> None:
    result = filled.run("--put", "--cache-dir", tmp_path / "cache")
    assert result.exit_code == 0, result.output
    for name in [*NAMES, "put", "cache disk"]:
        assert f" {name} " in result.stdout
    assert "fail" not in result.stdout
    assert "first epoch: up to" in result.stdout
    assert "later epochs, from the cache: up to" in result.stdout
    assert filled.server.secret_access_key not in result.output
    assert filled.server.access_key_id not in result.output
    assert list(tmp_path.iterdir()) == []


def test_json(filled: Filled) -> None:
    result = filled.run("--json")
    report = json.loads(result.stdout)
    assert [finding["name"] for finding in report["findings"]] == NAMES
    assert report["url"] == filled.url
    assert report["forecast"]["sample_bytes"] == 4096
    assert report["forecast"]["cold"]["images_s"] > 0
    assert report["forecast"]["warm"] is None
    assert filled.server.secret_access_key not in result.output


@pytest.mark.parametrize("client", ["native", "aiobotocore", "fsspec"])
def test_any_client(filled: Filled, client: str) -> None:
    assert filled.findings("--client", client)["throughput"]["facts"]["num_bytes"] == 2 << 20


def test_a_wrong_secret(filled: Filled, canary: Canary) -> None:
    wrong = secrets.token_hex(16)
    canary.watch(wrong)
    found = filled.findings(server=replace(filled.server, secret_access_key=wrong), expected=1)
    assert found["list"]["level"] == "fail"
    assert "secret key" in found["list"]["message"]
    assert found["endpoint"]["level"] == "ok"


def test_keys_that_were_revoked(filled: Filled, canary: Canary) -> None:
    user = add_user(filled.server)
    canary.watch(user.secret_access_key)
    assert filled.findings(server=user)["list"]["level"] == "ok"
    remove_user(filled.server, user.access_key_id)
    found = filled.findings(server=user, expected=1)
    assert "new keys" in found["list"]["advice"]
    assert found["list"]["facts"] == {"error": "AccessDenied"}


def test_who_may_neither_list_nor_write(filled: Filled, canary: Canary) -> None:
    """MinIO's own ``readonly`` is for those who know their keys' names."""
    reader = add_user(filled.server, policy="readonly")
    canary.watch(reader.secret_access_key)
    found = filled.findings("--put", server=reader, expected=1)
    assert (found["list"]["level"], found["get"]["level"], found["put"]["level"]) == ("fail", "warn", "fail")
    assert "s3:PutObject" in found["put"]["advice"]


def test_a_writer_who_cannot_read(filled: Filled, canary: Canary) -> None:
    writer = add_user(filled.server, policy="writeonly")
    canary.watch(writer.secret_access_key)
    found = filled.findings("--put", server=writer, expected=1)
    assert (found["list"]["level"], found["get"]["level"], found["put"]["level"]) == ("fail", "warn", "ok")
    assert "s3:ListBucket" in found["list"]["advice"]


def test_a_bucket_that_is_not_there(filled: Filled) -> None:
    found = replace(filled, url="s3://not-there-at-all").findings(expected=1)
    assert found["list"]["message"] == "no such bucket"


def test_an_empty_place(filled: Filled) -> None:
    found = replace(filled, url=filled.url + "-elsewhere").findings()
    assert (found["list"]["level"], found["get"]["level"]) == ("warn", "warn")
    assert "throughput" not in found


def test_a_server_that_is_not_there(filled: Filled, unused_tcp_port: int) -> None:
    """What would only repeat that nobody answers is not tried; what concerns this machine is."""
    nobody = replace(filled.server, endpoint_url=f"http://127.0.0.1:{unused_tcp_port}")
    found = filled.findings(server=nobody, expected=1)
    assert found["endpoint"]["facts"] == {"kind": "refused"}
    assert not {"list", "get", "throughput"} & set(found)
    assert "decoder" in found


def test_a_server_that_never_answers(filled: Filled) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in its queue
        nobody = replace(filled.server, endpoint_url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        found = filled.findings("--deadline", "0.3", server=nobody, expected=1)
    assert found["endpoint"]["facts"] == {"kind": "late"}


@contextmanager
def refusing_server(status: int, code: str, headers: dict[str, str], details: str = "") -> Iterator[str]:
    """A server that answers everything with one S3 error."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f"<Error><Code>{code}</Code>{details}</Error>".encode()
            self.send_response_only(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_clock_that_is_off(filled: Filled) -> None:
    theirs = datetime.now(UTC) - timedelta(hours=2)
    details = f"<ServerTime>{theirs:%Y-%m-%dT%H:%M:%SZ}</ServerTime>"
    with refusing_server(403, "RequestTimeTooSkewed", {"Date": format_datetime(theirs, usegmt=True)}, details) as url:
        found = filled.findings(server=replace(filled.server, endpoint_url=url), expected=1)
    assert found["clock"]["level"] == "fail"
    assert found["clock"]["facts"]["skew_s"] == pytest.approx(7200, abs=60)
    assert "timedatectl" in found["clock"]["advice"]
    assert found["list"]["advice"] == "see the advice for clock"


def test_a_region_that_is_wrong(filled: Filled) -> None:
    headers = {"x-amz-bucket-region": "eu-central-1"}
    with refusing_server(400, "AuthorizationHeaderMalformed", headers, "<Region>eu-central-1</Region>") as url:
        found = filled.findings(server=replace(filled.server, endpoint_url=url), expected=1)
    assert found["region"]["facts"] == {"given": "us-east-1", "found": "eu-central-1"}
    assert "--region eu-central-1" in found["region"]["advice"]
    assert found["list"]["advice"] == "see the advice for region and endpoint"


def test_nobody_has_keys(filled: Filled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    result = run(filled.url, "--endpoint-url", filled.server.endpoint_url, "--region", "us-east-1", "--json")
    assert result.exit_code == 1
    found = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert found["credentials"]["level"] == "fail"


@pytest.mark.slow
def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(bytes(1 << 20))
    result = run(tmp_path, "--put", "--json")
    assert result.exit_code == 0, result.output
    names = [finding["name"] for finding in json.loads(result.stdout)["findings"]]
    assert names == ["list", "get", "put", "round trip", "throughput", *NAMES[-4:]]


@pytest.mark.slow
def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(tmp_path, "--cache-dir", tmp_path / "file" / "cache", "--json")
    found = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert result.exit_code == 1
    assert found["cache disk"]["level"] == "fail"


class TestTerraform:
    def outputs(self, filled: Filled) -> str:
        server = filled.server
        values = {
            "dataset_url": filled.url,
            "storage_options": {"endpoint_url": server.endpoint_url, "region": server.region},
            "reader_access_key_id": server.access_key_id,
            "reader_secret_access_key": server.secret_access_key,
        }
        return json.dumps({name: {"value": value} for name, value in values.items()})

    def test_a_file_and_standard_input(self, filled: Filled, tmp_path: Path) -> None:
        text = self.outputs(filled)
        file = tmp_path / "outputs.json"
        file.write_text(text)
        for result in (run("--terraform", file, "--json"), run("--terraform", "-", "--json", stdin=text)):
            assert result.exit_code == 0, result.output
            assert json.loads(result.stdout)["url"] == filled.url
            assert filled.server.secret_access_key not in result.output

    def test_a_url_of_ones_own_goes_first(self, filled: Filled, tmp_path: Path) -> None:
        file = tmp_path / "outputs.json"
        file.write_text(self.outputs(filled))
        result = run(f"{filled.url}/shards", "--terraform", file, "--json")
        assert json.loads(result.stdout)["url"] == f"{filled.url}/shards"

    def test_what_is_no_output(self, tmp_path: Path) -> None:
        result = run("--terraform", "-", stdin="{}")
        assert result.exit_code == 2
        assert "dataset_url" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [(), ("s3://b", "--sample-size", "many"), ("s3://b", "--storage-option", "nonsense=1"), ("s3://key:hush-hush@b",)],
)
def test_what_cannot_work_is_said_at_once(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 2
    assert result.stderr
    assert "hush-hush" not in result.output


def test_certificates_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "nowhere.pem"))
    result = CliRunner().invoke(app, ["doctor", "s3://b", "--endpoint-url", "https://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "AWS_CA_BUNDLE" in result.stderr
    assert "nowhere.pem" in result.stderr
