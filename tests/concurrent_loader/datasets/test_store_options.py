"""The store options are declared once, and every dataset class takes them."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from concurrent_loader import ObjectDataset, ShardDataset
from concurrent_loader.datasets.store_options import StoreArguments, StoreOptions
from concurrent_loader.storage.errors import ConfigurationError


def test_type_checkers_see_the_fields_of_the_options() -> None:
    declared = {name: hint.__forward_arg__ for name, hint in StoreArguments.__annotations__.items()}
    assert declared == {field.name: field.type for field in fields(StoreOptions)}


@pytest.mark.parametrize("kind", [ShardDataset, ObjectDataset])
def test_the_signature_of_a_dataset_shows_every_option(kind: Callable[..., Any]) -> None:
    shown = inspect.signature(kind).parameters
    for name, option in inspect.signature(StoreOptions).parameters.items():
        assert shown[name] == option
    assert all(each.kind is not each.VAR_KEYWORD for each in shown.values())


@pytest.mark.parametrize("kind", [ShardDataset, ObjectDataset])
def test_an_unknown_option_is_named(kind: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cache_folder"):
        kind(str(tmp_path), cache_folder="x")


def test_sizes_are_parsed_and_secrets_hidden() -> None:
    options = StoreOptions(
        cache_dir=Path("x"), cache_bytes="2KiB", storage_options={"secret_access_key": "do-not-show"}
    )
    assert (options.cache_dir, options.cache_bytes, options.bytes_in_flight) == ("x", 2048, 128 << 20)
    assert "do-not-show" not in repr(options)
    assert b"do-not-show" not in pickle.dumps(options)


def test_a_budget_needs_a_folder() -> None:
    with pytest.raises(ConfigurationError, match="cache_dir"):
        StoreOptions(cache_bytes=1)
