"""fork, spawn and forkserver, with every client: it works, or it is refused with a clear message; it never hangs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from concurrent_loader.storage import ShardWriter

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("processes_program.py")
NUM_SAMPLES = 60
TIMEOUT_S = 90
GRACE_S = 10
TELLING_S = 2


def seldom(*cases):
    """Marks cases that are like the others but for the client or the start method."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long) for case in cases]


def write(url, options):
    with ShardWriter(url, columns={"label": "int64", "data": "bytes"}, shard_size="4KiB", storage_options=options) as w:
        for number in range(NUM_SAMPLES):
            w.write({"label": number, "data": bytes(500)})


@pytest.fixture
def place(request, tmp_path):
    """Gives (url, options, client) of a data set; for the client ``local`` in a folder, else in a bucket."""

    def make(client):
        if client == "local":
            write(str(tmp_path / "dataset"), {})
            return str(tmp_path / "dataset"), {}, "auto"
        bucket = request.getfixturevalue("s3_bucket")
        write(f"{bucket.url}/dataset", bucket.storage_options)
        return f"{bucket.url}/dataset", bucket.storage_options, client

    return make


def run(place, scenario, client):
    url, options, client = place(client)
    given = json.dumps({"url": url, "options": options})
    process = subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", PROGRAM, scenario, client],
        env={**os.environ, "DATASET": given, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGUSR1)  # each process says where it hangs
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=TELLING_S)
        os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        pytest.fail(f"hung; it said: {err[-20_000:]}")
    for secret in (options.get("secret_access_key"), options.get("session_token")):
        assert not secret or secret not in out + err
    assert (process.returncode, out.strip()) == (0, "done"), err[-20_000:]
    assert left_behind(process.pid) == []


def left_behind(session):
    """Processes of a session that are still there, and stay; multiprocessing's servers end shortly after their user."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z" and not ends(int(stat.parent.name)):
            found.append(stat.parent.name)
    return found


def ends(pid):
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], GRACE_S)[0])
    finally:
        os.close(process)


@pytest.mark.s3
@pytest.mark.parametrize("client", ["auto", *seldom("aiobotocore", "fsspec", "local")])
def test_fork(place, client):
    """Loaders in children, torch's workers, a fork in the middle of an epoch."""
    run(place, "fork", client)


@pytest.mark.s3
@pytest.mark.parametrize("client", ["auto", *seldom("local")])
def test_forks_while_threads_work(place, client):
    run(place, "load", client)


@pytest.mark.s3
@pytest.mark.parametrize(
    ("client", "method"), [("auto", "spawn"), *seldom(("auto", "forkserver"), ("fsspec", "spawn"))]
)
def test_torch_workers_by_other_methods(place, client, method):
    run(place, f"torch:{method}", client)


@pytest.mark.s3
@pytest.mark.parametrize("method", [*seldom("spawn"), "forkserver"])
def test_a_loader_in_another_child(place, method):
    run(place, f"loader:{method}", "auto")
