"""Makes aws_schema.json: what AWS's provider takes of what terraform/modules/aws names, and all that it must have.

An argument that the module did not name before is unknown to the tests until this program has run again.

The provider itself is far too big to build for a test, but its schema is published in another shape, as the npm package
``@cdktf/provider-aws``, generated from it. Unpack that and run ``python make_aws_schema.py UNPACKED/lib``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODULE = HERE.parents[1] / "terraform" / "modules" / "aws"
USED = re.compile(r'^(resource|data) "(aws_[a-z0-9_]+)"', re.MULTILINE)
INTERFACE = re.compile(r"^export interface (\w+)(?: extends [\w.]+)? \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"#([a-z0-9_]+) [^\n]*\n(?:    \*[^\n]*\n)*?    \*/\n    readonly (\w+)(\??): ([^;{]*)[;{]")
RESOURCE = re.compile(
    r"^export declare class \w+ extends cdktf\.Terraform(?:Resource|DataSource) \{\n(.*)", re.MULTILINE | re.DOTALL
)
GETTER = re.compile(r"^    get (\w+)\(\): ", re.MULTILINE)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[a-z])(?=\d+$)", "_", name).lower()


def fields(interfaces: dict[str, str], name: str, words: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute, _, optional, kind in FIELD.findall(interfaces[name]):
        if optional and attribute not in words:
            continue
        block = kind.split("|")[0].strip().removesuffix("[]")
        found[attribute] = {"required": not optional}
        if block in interfaces:
            found[attribute]["block"] = fields(interfaces, block, words)
    return found


def distil(text: str, words: set[str]) -> dict[str, Any]:
    interfaces = dict(INTERFACE.findall(text))
    (top,) = [name for name in interfaces if name.endswith("Config") and f"export interface {name} extends" in text]
    (body,) = RESOURCE.findall(text)
    exported = {snake(name) for name in GETTER.findall(body) if not name.endswith("Input")}
    return {"arguments": fields(interfaces, top, words), "exported": sorted(exported & words)}


def main(library: Path) -> None:
    module = "".join(path.read_text() for path in MODULE.glob("*.tf"))
    used, words = set(USED.findall(module)), set(re.findall(r"\w+", module))
    schema: dict[str, dict[str, Any]] = {"resource": {}, "data": {}}
    for kind, name in sorted(used):
        folder = ("data-aws-" if kind == "data" else "") + name.removeprefix("aws_").replace("_", "-")
        schema[kind][name] = distil((library / folder / "index.d.ts").read_text(), words)
    (HERE / "aws_schema.json").write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
