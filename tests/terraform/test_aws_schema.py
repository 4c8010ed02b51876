"""The AWS module against the provider's schema: no argument that it does not take, none missing that it must have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

SCHEMA = json.loads(Path(__file__).with_name("aws_schema.json").read_text())
META = {"count", "for_each", "depends_on", "lifecycle", "provider", "dynamic"}
REFERENCE = re.compile(r"(?<![\w.])(data\.)?(aws_\w+)\.(\w+)(?:\[[^]]*\])?\.(\w+)")


@pytest.fixture(scope="module")
def aws(parsed: Callable[[Path], dict[str, Any]], terraform_folder: Path) -> dict[str, Any]:
    return parsed(terraform_folder / "modules" / "aws")


def bodies(module: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for kind in ("resource", "data"):
        for entry in module[kind]:
            for type_name, named in entry.items():
                for name, body in named.items():
                    if type_name.startswith("aws_"):
                        yield kind, f"{type_name}.{name}", body


def problems(body: dict[str, Any], schema: dict[str, Any], where: str) -> Iterator[str]:
    given = {name: value for name, value in body.items() if not name.startswith("__")}
    blocks = dict(given)
    for entry in given.get("dynamic", []):
        for name, dynamic in entry.items():
            blocks[name] = [*blocks.get(name, []), *dynamic["content"]]
    for name, value in blocks.items():
        if name in META:
            continue
        if name not in schema:
            yield f"{where}: there is no {name}"
        elif "block" in schema[name]:
            for inner in value:
                yield from problems(inner, schema[name]["block"], f"{where}.{name}")
    for name, facts in schema.items():
        if facts["required"] and name not in blocks:
            yield f"{where}: {name} is missing"


def test_arguments(aws: dict[str, Any]) -> None:
    found = [
        problem
        for kind, address, body in bodies(aws)
        for problem in problems(body, SCHEMA[kind][address.partition(".")[0]]["arguments"], address)
    ]
    assert not found


def test_references_name_what_is_there(aws: dict[str, Any]) -> None:
    there = {(kind, address) for kind, address, _ in bodies(aws)}
    found = REFERENCE.findall(json.dumps(aws))
    assert len(found) > 50
    for data, type_name, name, attribute in found:
        kind = "data" if data else "resource"
        assert (kind, f"{type_name}.{name}") in there
        assert attribute in SCHEMA[kind][type_name]["exported"], f"{type_name}.{name}.{attribute}"


def test_would_notice(aws: dict[str, Any]) -> None:
    schema = SCHEMA["resource"]["aws_s3_directory_bucket"]["arguments"]
    assert list(problems({"bukket": ["x"], "location": [{}]}, schema, "x")) == [
        "x: there is no bukket",
        "x.location: name is missing",
        "x: bucket is missing",
    ]
