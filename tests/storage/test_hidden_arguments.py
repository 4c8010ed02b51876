"""No secret in what people print of a failed call: messages, tracebacks with variables, pickles, logs, commands."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import json
import logging
import os
import pickle
import traceback
from dataclasses import dataclass, field

import pytest
from rich.console import Console
from rich.traceback import Traceback
from typer.testing import CliRunner

from concurrent_loader import ObjectDataset, ShardDataset
from concurrent_loader.cli.app import app
from concurrent_loader.doctor import CheckOptions, run_checks
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.importers.image_folder import ImageFolder
from concurrent_loader.storage.importers.ingest import ingest
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.stores.backends.aiobotocore import AiobotocoreStore
from concurrent_loader.storage.stores.backends.s3 import S3Store

pytestmark = pytest.mark.slow  # a traceback with all variables for each

KEY, SECRET, TOKEN, PASSWORD, SIGNATURE = (
    "CANARYKEYID0123456789",
    "canary/Secret+0123456789",
    "canaryToken0123456789",
    "canary:Password0123456789",
    "canarySignature0123456789",
)
CANARIES = [SECRET, TOKEN, PASSWORD, PASSWORD.partition(":")[2], SIGNATURE]
NOBODY = "http://127.0.0.1:9"  # nobody listens on the port of "discard"
ONCE = RetryPolicy(max_attempts=1)


@dataclass
class Case:
    """A URL, options and an environment; their reprs are hidden, for the frames of this test are shown as well."""

    url: str = field(default="s3://bucket/x", repr=False)
    options: dict[str, object] = field(default_factory=dict, repr=False)
    environment: dict[str, str] = field(default_factory=dict, repr=False)


def keys(**more):
    return {"access_key_id": KEY, "secret_access_key": SECRET, "session_token": TOKEN, "region": "us-east-1", **more}


CASES = {
    "password": lambda: Case(url=f"s3://{KEY}:{PASSWORD}@bucket/x"),
    "slash in the password": lambda: Case(url=f"s3://{KEY}:{SECRET}@bucket/x"),
    "signature": lambda: Case(url=f"s3://bucket/x?X-Amz-Signature={SIGNATURE}"),
    "forgotten scheme": lambda: Case(url=f"s3:/{KEY}:{PASSWORD}@bucket/x"),
    "endpoint": lambda: Case(options=keys(endpoint_url=f"http://{KEY}:{PASSWORD}@127.0.0.1:9")),
    "endpoint of the environment": lambda: Case(
        options=keys(), environment={"AWS_ENDPOINT_URL": f"http://{KEY}:{PASSWORD}@127.0.0.1:9"}
    ),
    "unknown option": lambda: Case(options=keys(secret_acces_key=SECRET, endpoint_url=NOBODY)),
    "wrong type": lambda: Case(options={"access_key_id": KEY, "secret_access_key": SECRET.encode()}),
    "newline": lambda: Case(options={**keys(endpoint_url=NOBODY), "session_token": f"{TOKEN}\n"}),
    "contradiction": lambda: Case(options=keys(anonymous=True, endpoint_url=NOBODY)),
    "nobody there": lambda: Case(options=keys(endpoint_url=NOBODY)),
    "nobody there, keys of the environment": lambda: Case(
        options={"endpoint_url": NOBODY, "region": "us-east-1"},
        environment={"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN},
    ),
    "nobody there, keys of a function": lambda: Case(
        options={"endpoint_url": NOBODY, "region": "us-east-1", "credentials": handed_out}
    ),
}


def handed_out():
    return {"access_key_id": KEY, "secret_access_key": SECRET, "session_token": TOKEN, "expires_at": None}


async def through_store(case, client):
    async with open_store(case.url, client=client, **case.options) as store:
        pickle.dumps(store)
        await FetchEngine(store, retry=ONCE).fetch("key", 0, 2)


async def through_listing(case, client):
    async with open_store(case.url, client=client, **case.options) as store:
        [meta async for meta in store.list()]


async def through_put(case, client):
    async with open_store(case.url, client=client, **case.options) as store:
        await store.put("key", b"bytes")


def through_dataset(case, client):
    ShardDataset(case.url, client=client, storage_options=case.options, retry=ONCE)


def through_objects(case, client):
    ObjectDataset(case.url, client=client, storage_options=case.options, retry=ONCE)


def through_writer(case, client):
    ShardWriter(case.url, columns={"a": "int64"}, client=client, storage_options=case.options, retry=ONCE)


def through_ingest(case, client):
    source = ImageFolder(open_store("memory://hidden-arguments"))
    ingest(source, case.url, append=True, client=client, storage_options=case.options)


async def through_doctor(case, client):
    await run_checks(case.url, case.options, CheckOptions(probe_bytes=0, deadline_s=5), client=client)
    raise StorageError("doctor tells findings instead")


def through_class(case, client):
    kind = AiobotocoreStore if client == "aiobotocore" else S3Store
    kind(case.url)
    raise StorageError("these options are checked elsewhere")


WAYS = [through_store, through_listing, through_put, through_dataset, through_objects]
SLOW_WAYS = [through_writer, through_doctor, through_ingest]  # they insist, or measure


def shown_by(error, log):
    """Everything that people print of an error."""
    console = Console(file=io.StringIO(), width=400)
    locals_too = {
        "show_locals": True,
        "locals_max_string": None,
        "locals_max_length": None,
        "width": 400,
        "extra_lines": 0,
    }
    console.print(Traceback.from_exception(type(error), error, error.__traceback__, **locals_too))
    logging.getLogger("storage.canary").error("it failed", exc_info=error)
    return [
        repr(error),
        str(error),
        "".join(traceback.format_exception(error)),
        repr(pickle.dumps(error)),
        json.dumps({name: repr(value) for name, value in vars(error).items()}),
        console.file.getvalue(),
        log.getvalue(),
    ]


@pytest.fixture
def log():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.root.addHandler(handler)
    yield stream
    logging.root.removeHandler(handler)


def failure_of(way, name, client, monkeypatch):
    """What a case ends with; raised here, so that this test's own frames are part of its traceback."""
    case = CASES[name]()
    for variable in case.environment:
        monkeypatch.setenv(variable, case.environment[variable])
    try:
        if inspect.iscoroutinefunction(way):
            asyncio.run(way(case, client))
        else:
            way(case, client)
    except StorageError as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way", "client"),
    [(name, way, "native") for name in CASES for way in WAYS]
    + [(name, way, "native") for name in ("endpoint", "newline", "unknown option") for way in SLOW_WAYS]
    + [(name, through_store, client) for name in CASES for client in ("aiobotocore", "fsspec")],
)
def test_no_entry_shows_a_secret(name, way, client, log, monkeypatch):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    for text in shown_by(failure_of(way, name, client, monkeypatch), log):
        leaked = [number for number, canary in enumerate(CANARIES) if canary in text]
        assert not leaked, f"canaries {leaked} are shown"


@pytest.mark.parametrize("way", [through_class, *SLOW_WAYS])
@pytest.mark.parametrize("name", ["password", "slash in the password", "signature"])
def test_nor_does_any_class(way, name, log, monkeypatch):
    texts = shown_by(failure_of(way, name, "auto", monkeypatch), log)
    assert not any(canary in text for canary in CANARIES for text in texts)


def test_the_frames_would_have_shown_it(log, monkeypatch):
    """The test above can fail: rich does print variables, of the frames that are there."""

    def unprotected(case, client):
        secret = case.options["secret_access_key"]
        raise StorageError(f"no luck with {len(secret)} characters")

    error = failure_of(unprotected, "nobody there", "auto", monkeypatch)
    assert any(SECRET in text for text in shown_by(error, log))


@pytest.mark.slow
async def test_nor_does_a_listing_that_is_interrupted(log):
    """What is no error of a store keeps its frames."""
    asked, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await reader.read()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        case = Case(options=keys(endpoint_url=f"http://127.0.0.1:{port}"))
        listing = asyncio.create_task(through_listing(case, "native"))
        await asked.wait()
        listing.cancel()
        try:
            await listing
        except asyncio.CancelledError as error:
            interrupted = error
        await ended.wait()
    texts = shown_by(interrupted, log)
    assert any("_read_page" in text for text in texts), "the frames are shown"
    assert not any(canary in text for canary in CANARIES for text in texts)


@pytest.mark.parametrize(
    "name", ["password", "slash in the password", "signature", "forgotten scheme", "endpoint", "unknown option"]
)
@pytest.mark.parametrize("arguments", [["doctor", "--json"], ["info"], ["verify"], ["--debug", "doctor"]])
def test_no_command_shows_a_secret(name, arguments, monkeypatch):
    case = CASES[name]()
    environment = {name: "" for name in os.environ if name.startswith("AWS_")} | case.environment
    given = [
        f"--storage-option={option}={value}"
        for option, value in case.options.items()
        if isinstance(value, str) and "\n" not in value
    ]
    command, *flags = [each for each in arguments if each != "--debug"]
    before = ["--debug"] if "--debug" in arguments else []
    limits = ["--probe-size=0", "--deadline=5"] if command == "doctor" else []
    done = CliRunner().invoke(app, [*before, command, case.url, *flags, *limits, *given], env=environment)
    assert done.exit_code != 0
    assert not any(canary in done.output for canary in CANARIES)
