import json
import os
import subprocess

import pytest
from typer.testing import CliRunner

from concurrent_loader.cli.app import app
from concurrent_loader.storage.testing import local_s3, stop_s3

pytestmark = pytest.mark.s3

FAILED = 2
NOT_RUNNING = 3


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield
    stop_s3()


@pytest.fixture
def run():
    def invoke(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["s3", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def start(s3_server) -> tuple[str, ...]:
    return ("start", "--moto") if s3_server.kind == "moto" else ("start",)


def test_the_whole_story(run, s3_server):
    assert run("status", code=NOT_RUNNING) == "not running\n"
    assert json.loads(run("status", "--json", code=NOT_RUNNING)) == {"running": False}
    assert run(*start(s3_server), "--bucket", "one", "--bucket", "two").startswith("# started")
    assert "running: " in run("status")
    facts = json.loads(run("status", "--json"))
    assert facts["running"]
    assert run(*start(s3_server)).startswith("# already running")
    assert "stopped" in run("stop")
    assert run("stop") == "not running\n"
    run("status", code=NOT_RUNNING)


def test_a_server_that_another_project_started_is_not_used_in_silence(s3_server, tmp_path, monkeypatch):
    def started_in(folder):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        result = CliRunner().invoke(app, ["s3", *start(s3_server)])
        assert result.exit_code == 0
        return result

    assert started_in("one").stderr == ""
    assert started_in("one").stderr == ""
    other = started_in("two")
    assert f"started in {tmp_path / 'one'}, with the same buckets" in other.stderr
    assert "# already running: " in other.stdout


def test_what_start_prints_can_be_evaluated_by_a_shell(run, s3_server, monkeypatch):
    printed = run(*start(s3_server), "--bucket", "bucket")
    script = f"{printed}\nenv -0"
    shell = subprocess.run(
        ["sh", "-c", script], capture_output=True, check=True, env={"PATH": os.defpath}
    ).stdout.decode()
    for line in shell.split("\0"):
        if line.startswith("AWS_"):
            monkeypatch.setenv(*line.split("=", 1))
    with local_s3() as server:
        assert server.kind == "external"
        assert server.endpoint_url == json.loads(run("status", "--json"))["endpoint_url"]
        assert server.make_bucket("bucket") == "s3://bucket"


def test_errors_are_one_line(run, s3_server, tmp_path):
    run(*start(s3_server))
    assert run("start", "--data", str(tmp_path / "other"), code=FAILED).startswith("error: a server is already running")
    assert run("start", "--bucket", "No_Bucket", code=FAILED).count("\n") == 1


def test_status_does_not_print_secrets_for_people(run, s3_server):
    run(*start(s3_server))
    secret = json.loads(run("status", "--json"))["secret_access_key"]
    assert secret not in run("status")
