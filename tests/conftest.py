"""Servers and checks that many tests share; what they need is made once a session, by the first that asks."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

import pytest
from hypothesis import settings

from storage.testing import LocalS3, ToolUnavailable, local_s3
from storage.testing import no_leaks as leaving_nothing
from storage.testing.binaries import MINIO, TOXIPROXY, find_tool
from storage.testing.canary import Canary, canary, pytest_runtest_makereport

__all__ = ["canary", "pytest_runtest_makereport"]  # pytest finds both here

IN_CI = os.environ.get("CI") == "true"

# No deadline for single examples: on a busy machine they measure the others.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@dataclass(frozen=True)
class Bucket:
    """A fresh bucket: its name, its ``s3://`` URL, and the options that open it."""

    name: str
    url: str
    storage_options: dict[str, str]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the programs that the collected tests need now: later it would be on the clock of the first of them."""
    needed = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if any(item.get_closest_marker("s3") for item in session.items):  # some ask for the server while they run
        needed.add("s3_server")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for fixture, tool in (("s3_server", MINIO), ("toxiproxy_program", TOXIPROXY)):
        if fixture in needed and not session.config.option.collectonly:
            with suppress(ToolUnavailable):  # the fixture will tell, and knows what follows
                find_tool(tool, progress=reporter.write_line if reporter else None)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Escapes what is not UTF-8 in logs and messages: pytest-xdist cannot send it from process to process."""
    return _escaped((yield))


def _escaped(value: object) -> object:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {key: _escaped(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(map(_escaped, value))
        case _:
            return value


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    """Starts the server that forks worker processes, with the package that is tested.

    By itself it would prefer the folder that the tests run in, where the package is as well, without native modules.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["concurrent_loader.worker_program"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONSAFEPATH", "1")
        forkserver.ensure_running()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Has programs that tests start heed Ctrl-C: a shell's background job ignores it, and so would its children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_aws() -> Iterator[None]:
    """Keeps the suite off the developer's clouds: no credentials, endpoints, profiles or metadata servers of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield


@pytest.fixture(scope="session")
def s3_server(_own_aws: None, canary: Canary) -> Iterator[LocalS3]:
    """A local S3 server: MinIO; in CI nothing else will do, elsewhere moto is better than none."""
    with local_s3(kinds=("minio",) if IN_CI else ("minio", "moto")) as server:
        canary.watch(server.secret_access_key)
        yield server


@pytest.fixture(scope="session")
def moto_server(_own_aws: None, canary: Canary) -> Iterator[LocalS3]:
    """The other implementation of S3, where two opinions are wanted."""
    with local_s3(kinds=("moto",)) as server:
        canary.watch(server.secret_access_key)
        yield server


@pytest.fixture(scope="session")
def toxiproxy_program() -> Path:
    """The proxy that stands for the network between; its absence is a failure in CI only."""
    try:
        return find_tool(TOXIPROXY)
    except ToolUnavailable as error:
        if IN_CI:
            raise
        pytest.skip(str(error))


@pytest.fixture
def s3_bucket(s3_server: LocalS3) -> Bucket:
    """A bucket of the test's own."""
    return _fresh_bucket(s3_server)


@pytest.fixture
def moto_bucket(moto_server: LocalS3) -> Bucket:
    """The same at moto."""
    return _fresh_bucket(moto_server)


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves threads, descriptors or pending tasks behind."""
    with leaving_nothing():
        yield


def _fresh_bucket(server: LocalS3) -> Bucket:
    name = f"test-{secrets.token_hex(8)}"
    return Bucket(name, server.make_bucket(name), server.storage_options())
