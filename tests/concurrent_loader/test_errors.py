"""Errors name sample and stage, and cross process borders whole."""

from __future__ import annotations

import pickle

import pytest

from concurrent_loader.errors import CollateError, DecodeError, LoaderError, LoaderStateError, TransformError


def test_message_names_stage_sample_and_column() -> None:
    error = DecodeError("damaged jpeg data", sample=7, column="image")
    assert str(error) == "damaged jpeg data (stage='decode', sample=7, column='image')"
    assert str(LoaderError("something")) == "something"


def test_locate_fills_in_and_keeps() -> None:
    error = TransformError("the transform failed", sample=3)
    assert error.locate(sample=9, column="image") is error
    assert (error.sample, error.column, error.stage) == (3, "image", "transform")
    with pytest.raises(AttributeError):
        error.locate(shard=1)


@pytest.mark.parametrize("kind", [LoaderError, DecodeError, TransformError, CollateError, LoaderStateError])
def test_pickling_keeps_everything(kind: type[LoaderError]) -> None:
    error = kind("what", sample=1, column="c", stage="s", expected=(1, 2), got="x")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_a_state_error_is_a_value_error() -> None:
    assert issubclass(LoaderStateError, ValueError)
