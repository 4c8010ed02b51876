"""From what Terraform made to what doctor examines: reads ``terraform output -json`` of this project's modules."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from storage.errors import ConfigurationError

__all__ = ["Identity", "Target", "read_outputs"]

Identity = Literal["reader", "writer"]
_OPTIONS = ("endpoint_url", "region")


@dataclass(frozen=True, slots=True)
class Target:
    """A data set's place and how to get at it.

    Attributes:
        url: Of the data set.
        storage_options: Keys included, where the outputs have them.
        cache_dir: Of the machine that the outputs are about, if any.
    """

    url: str
    storage_options: dict[str, Any] = field(repr=False)
    cache_dir: str | None


def read_outputs(text: str, *, identity: Identity = "reader") -> Target:
    """Reads outputs.

    Args:
        text: JSON: ``{name: {"value": …}, …}``.
        identity: Whose keys to take, where there are any.

    Raises:
        ConfigurationError: It is not that, or lacks ``dataset_url``. No value is repeated: some are secret.
    """
    try:
        outputs = json.loads(text)
    except ValueError as error:
        raise ConfigurationError("this is no JSON; it should come from `terraform output -json`") from error
    if not isinstance(outputs, dict) or not all(isinstance(facts, dict) for facts in outputs.values()):
        raise ConfigurationError("this does not look like the answer of `terraform output -json`")
    values = {name: facts.get("value") for name, facts in outputs.items()}
    url = values.get("dataset_url")
    if not isinstance(url, str):
        raise ConfigurationError("the outputs have no dataset_url", got=sorted(values))
    given = values.get("storage_options") or {}
    if not isinstance(given, dict) or not set(given) <= set(_OPTIONS):
        raise ConfigurationError(f"storage_options may hold {' and '.join(_OPTIONS)}")
    options = {name: value for name, value in given.items() if value is not None}
    for name in ("access_key_id", "secret_access_key"):
        if (value := values.get(f"{identity}_{name}")) is not None:
            options[name] = value
    cache_dir = values.get("cache_dir")
    if cache_dir is not None and not isinstance(cache_dir, str):
        raise ConfigurationError("cache_dir is a path")
    return Target(url, options, cache_dir)
