"""Pickled datasets leave secrets out, find them again in the standard chain, or raise an error that says what to do."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import subprocess
import sys

import pytest

from concurrent_loader import ShardDataset
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import StoreClosed

pytestmark = pytest.mark.s3
READ = """
import json, os, pickle, sys
from concurrent_loader.storage.errors import ConfigurationError
dataset = pickle.loads(sys.stdin.buffer.read())
print(repr(dataset))
if "KEYS" in os.environ:
    dataset = dataset.with_storage_options(**json.loads(os.environ["KEYS"]))
try:
    print(dataset[3]["label"], len(dataset))
except ConfigurationError as error:
    print("refused:", error)
dataset.close()
"""


@pytest.fixture
def dataset(s3_bucket):
    url, options = f"{s3_bucket.url}/dataset", s3_bucket.storage_options
    with ShardWriter(url, columns={"label": "int64"}, storage_options=options) as writer:
        for number in range(5):
            writer.write({"label": number})
    with ShardDataset(url, storage_options=options) as dataset:
        yield dataset


def elsewhere(data, **environment):
    done = subprocess.run(
        [sys.executable, "-c", READ], input=data, capture_output=True, env={**os.environ, **environment}, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_nothing_that_is_stored_or_shown_holds_a_secret(dataset, s3_bucket):
    for name in ("secret_access_key", "access_key_id"):
        secret = s3_bucket.storage_options[name]
        for thing in (dataset, copy.copy(dataset), copy.deepcopy(dataset)):
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                assert secret.encode() not in pickle.dumps(thing, protocol)
            assert secret not in f"{thing!r}{thing!s}{vars(thing)!r}"


def test_in_the_same_process_the_keys_are_found_again(dataset):
    for again in (pickle.loads(pickle.dumps(dataset)), copy.copy(dataset), copy.deepcopy(dataset)):
        with again:
            assert again[3] == {"label": 3}


def test_elsewhere_the_error_says_what_to_do(dataset):
    said = elsewhere(pickle.dumps(dataset))
    assert "refused:" in said
    assert "with_storage_options" in said


def test_elsewhere_the_standard_chain_serves(dataset, s3_server):
    assert elsewhere(pickle.dumps(dataset), **s3_server.environment()).endswith("3 5\n")


def test_elsewhere_they_can_be_given_again(dataset, s3_bucket):
    keys = {name: s3_bucket.storage_options[name] for name in ("access_key_id", "secret_access_key")}
    assert elsewhere(pickle.dumps(dataset), KEYS=json.dumps(keys)).endswith("3 5\n")


def test_a_child_that_is_being_started_gets_them(dataset):
    multiprocessing.context.set_spawning_popen(object())
    try:
        data = pickle.dumps(dataset)
    finally:
        multiprocessing.context.set_spawning_popen(None)
    assert elsewhere(data).endswith("3 5\n")


def test_unpickling_sends_nothing_before_the_first_use(dataset):
    with pickle.loads(pickle.dumps(dataset)) as again:
        assert repr(again) == f"ShardDataset({dataset.url!r}, snapshot=1)"
        assert len(again) == 5
        assert "samples=5" in repr(again)
    closed = pickle.loads(pickle.dumps(dataset))
    closed.close()
    with pytest.raises(StoreClosed):
        len(closed)


def test_other_options_for_the_same_snapshot(dataset, s3_bucket):
    with ShardWriter(
        f"{s3_bucket.url}/dataset", columns={"label": "int64"}, append=True, storage_options=s3_bucket.storage_options
    ) as writer:
        writer.write({"label": 5})
    with dataset.with_storage_options(max_connections=3, region=None) as other:
        assert len(other) == 5
        assert other._store._options.max_connections == 3
        assert other._store._options.region is None
    assert dataset[4] == {"label": 4}
