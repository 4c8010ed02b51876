from __future__ import annotations

import inspect
import pickle

import pytest

from concurrent_loader.storage import errors
from concurrent_loader.storage.errors import ConfigurationError, SchemaError, StorageError, StoreError, TransientError

TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StorageError)]
FACTS = {
    "url": "s3://bucket",
    "key": "a/b",
    "start": 3,
    "end": 9,
    "shard": "shards/x.cls",
    "sample": 0,
    "column": "label",
    "expected": 6,
    "got": (1, "x"),
    "attempts": 4,
}


def test_everything_is_exported_and_drawn():
    assert {kind.__name__ for kind in TREE} == set(errors.__all__)
    for kind in TREE:
        assert kind.__name__ in errors.__doc__


@pytest.mark.parametrize("kind", TREE)
def test_pickling_keeps_everything(kind):
    error = kind("what happened", **FACTS)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)
    assert again.args == error.args


@pytest.mark.parametrize("kind", TREE)
def test_retryable_is_a_property_of_the_class(kind):
    assert kind.retryable == issubclass(kind, TransientError)


def test_messages_name_every_fact():
    message = str(StorageError("what happened", **FACTS))
    assert message.startswith("what happened (")
    for name in FACTS.keys() - {"start", "end"}:
        assert f"{name}={FACTS[name]!r}" in message
    assert "range=[3, 9)" in message


def test_messages_without_facts_are_the_sentence():
    assert str(StorageError("what happened")) == "what happened"
    assert "sample=0" in str(StorageError("x", sample=0))


def test_locate_fills_in_and_never_overwrites():
    error = StoreError("x", key="known")
    assert error.locate(key="other", url="s3://b", start=1) is error
    assert (error.key, error.url, error.start, error.end) == ("known", "s3://b", 1, None)
    with pytest.raises(AttributeError):
        error.locate(colour="red")


def test_builtin_relatives():
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(SchemaError, TypeError)
