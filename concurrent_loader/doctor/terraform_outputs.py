"""Reads ``terraform output -json`` of this project's modules, to find what to check."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["Identity", "Target", "read_outputs"]

Identity = Literal["reader", "writer"]
_OPTIONS = ("endpoint_url", "region")


@dataclass(frozen=True, slots=True)
class Target:
    """Describes a dataset and how to access it.

    Attributes:
        url: URL of the dataset.
        storage_options: Options of the store, including keys if the outputs have them.
        cache_dir: Cache folder of the machine in the outputs; None without one.
    """

    url: str
    storage_options: dict[str, Any] = field(repr=False)
    cache_dir: str | None


def read_outputs(text: str, *, identity: Identity = "reader") -> Target:
    """Reads Terraform outputs.

    Args:
        text: JSON text, ``{name: {"value": …}, …}``.
        identity: Identity whose keys to use, if the outputs have keys. Default ``"reader"``.

    Raises:
        ConfigurationError: The text is invalid or lacks ``dataset_url``. The message contains no values, because some
            are secret.
    """
    try:
        outputs = json.loads(text)
    except ValueError as error:
        raise ConfigurationError("the outputs are not JSON; pass the output of `terraform output -json`") from error
    if not isinstance(outputs, dict) or not all(isinstance(facts, dict) for facts in outputs.values()):
        raise ConfigurationError("the JSON is not the output of `terraform output -json`")
    values = {name: facts.get("value") for name, facts in outputs.items()}
    url = values.get("dataset_url")
    if not isinstance(url, str):
        raise ConfigurationError("the outputs have no dataset_url", got=sorted(values))
    given = values.get("storage_options") or {}
    if not isinstance(given, dict) or not set(given) <= set(_OPTIONS):
        raise ConfigurationError(f"the output storage_options may contain only {' and '.join(_OPTIONS)}")
    options = {name: value for name, value in given.items() if value is not None}
    for name in ("access_key_id", "secret_access_key"):
        if (value := values.get(f"{identity}_{name}")) is not None:
            options[name] = value
    cache_dir = values.get("cache_dir")
    if cache_dir is not None and not isinstance(cache_dir, str):
        raise ConfigurationError("the output cache_dir must be a path")
    return Target(url, options, cache_dir)
