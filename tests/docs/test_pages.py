"""What the pages name is there: links, files, commands with their options, benchmarks, public names, arguments."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import concurrent_loader
import concurrent_loader.storage.testing
from concurrent_loader import storage
from concurrent_loader.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "terraform/**/*.md")
    for path in ROOT.glob(pattern)
    if ".terraform" not in path.parts
)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        page: Where it stands.
        line: Its first line there, from 1.
        language: What its fence says; empty if nothing.
        text: Without the indentation of a list.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    language: str | None = None
    lines: list[str] = []
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1):
        if not line.lstrip().startswith("```"):
            lines.append(line)
        elif language is None:
            language, lines = line.strip()[3:], []
        else:
            text = textwrap.dedent("\n".join(lines)) + "\n"
            found.append(Block(page, number - len(lines), language, text))
            language = None
    assert language is None, f"{page}: a block without an end"
    return found


def prose(page: str) -> str:
    """All but blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What links may name: headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page.relative_to(ROOT).as_posix()), flags=re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
        found.add(plain.replace(" ", "-"))
    return found


def inline_code(page: str) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(page))]


def files() -> list[str]:
    """All files of this project, below its root; of a copy without git whatever lies there."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return listed.stdout.splitlines()
    return [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]


FILES = files()
PYTHON = [block for page in PAGES for block in blocks(page) if block.language == "python"]
SHELL = [block for page in PAGES for block in blocks(page) if block.language in {"", "sh", "console"}]
PUBLIC: dict[str, Any] = {
    name: getattr(package, name) for package in (storage, concurrent_loader) for name in package.__all__
}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES)
def test_files_are_there(page: str) -> None:
    for name in inline_code(page):
        if re.fullmatch(r"[\w./-]+\.(py|json|c|h|md|sh|tf|toml|tftpl|pyi)", name) and not name.startswith("/"):
            assert any(f"/{path}".endswith(f"/{name}") for path in FILES), name


def test_pages_that_the_code_names_are_there() -> None:
    """In comments, docstrings and messages."""
    missing = []
    for name in FILES:
        if Path(name).suffix in {".py", ".c", ".h", ".toml", ".sh", ".tf"} and not (ROOT / name).is_symlink():
            text = (ROOT / name).read_text(encoding="utf-8")
            missing += [
                f"{name}: {page}" for page in re.findall(r"docs/[\w/-]+\.md", text) if not (ROOT / page).exists()
            ]
    assert missing == []


@pytest.mark.parametrize(
    ("page", "package"),
    [
        ("loader", concurrent_loader),
        ("storage", storage),
        ("storage_testing", concurrent_loader.storage.testing),
    ],
)
def test_the_reference_has_every_public_name(page: str, package: Any) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\.\. auto(?:class|function|exception|data):: (\w+)$", text, re.MULTILINE)) == sorted(
        package.__all__
    )


# -- commands ----------------------------------------------------------------------------------------------------------


def commands(text: str) -> list[list[str]]:
    """The words behind each ``concurrent-loader``, up to the end of the command."""
    found = []
    for line in text.splitlines():
        code = re.sub(r"\s#\s.*", "", line)
        for words in re.findall(r"(?<![\w./-])concurrent-loader\s+([a-z0-9][^|;)`\"]*)", code):
            found.append(words.split())
    return found


def fault(words: list[str], *, whole: bool = True) -> str | None:
    """What is wrong with a command; without ``whole`` a group of commands will do."""
    command, rest = get_command(app), list(words)
    while hasattr(command, "commands") and (rest or whole):
        name = rest.pop(0) if rest else ""
        if name not in command.commands:
            return f"{words}: no command {name!r}"
        command = command.commands[name]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in rest if word.startswith("--")]
    return next((f"{words}: no option {option}" for option in given if option not in options), None)


@pytest.mark.slow
@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_in_blocks(block: Block) -> None:
    assert [found for words in commands(block.text) if (found := fault(words))] == []


@pytest.mark.slow  # CHANGELOG.md has many
@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text(page: str) -> None:
    for code in inline_code(page):
        if not code.startswith("concurrent-loader ") or "…" in code:
            continue
        first, *others = (words.split() for words in code.removeprefix("concurrent-loader ").split(" | "))
        assert fault(first, whole=False) is None
        for words in others:  # `cache info | gc`: beside the last word, or beside all of them
            assert None in (fault([*first[:-1], *words], whole=False), fault(words, whole=False)), code


def program_of(benchmark: str) -> Path:
    """What ``python -m benchmarks.NAME`` runs."""
    package = ROOT / "benchmarks" / benchmark / "__main__.py"
    return package if package.exists() else ROOT / "benchmarks" / f"{benchmark}.py"


def test_benchmarks_and_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in re.findall(r"-m\s+benchmarks\.(\w+)", text):
            assert program_of(name).relative_to(ROOT).as_posix() in FILES, f"{page}: {name}"
        for name in re.findall(r"(?:^\$? ?|`)make ([a-z0-9-]+)", text, flags=re.MULTILINE):
            assert name in targets, f"{page}: make {name}"


@pytest.mark.parametrize("page", PAGES)
def test_options_of_benchmarks_are_theirs(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for name, rest in re.findall(r"-m benchmarks\.(\w+)((?: --?\w[\w-]*| [A-Z0-9][\w.]*)*)", text):
        source = program_of(name).read_text(encoding="utf-8")
        for option in shlex.split(rest):
            if option.startswith("--") and option != "--json":
                field = option.removeprefix("--").replace("-", "_")  # as `benchmarks.command.program` takes it
                assert f'"{option}"' in source or f'"{field}"' in source, f"{name} {option}"


# -- Python ------------------------------------------------------------------------------------------------------------


def parsed(block: Block) -> ast.Module:
    """An ellipsis in print is one in Python, too; in the place of arguments it is left out."""
    text = re.sub(r"(, ?…|…, ?|(?<=\()…(?=\)))", "", block.text.replace('"…"', '"..."').replace('b"…"', 'b"..."'))
    return ast.parse(text.replace("…", "..."), str(block))


_INSTALLED_WITH_US = r"concurrent_loader(?!\.integrations\.)\b"  # an integration needs the other tool


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_imports_and_arguments_are_those_of_the_package(block: Block) -> None:
    names: dict[str, Any] = dict(PUBLIC)
    for node in ast.walk(parsed(block)):
        if isinstance(node, ast.ImportFrom) and re.match(_INSTALLED_WITH_US, node.module or ""):
            module = importlib.import_module(node.module)
            names |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    for node in ast.walk(parsed(block)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in names:
            continue
        accepted = inspect.signature(names[node.func.id]).parameters
        for keyword in node.keywords:
            free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
            assert keyword.arg is None or keyword.arg in accepted or free, f"{block}: {node.func.id}({keyword.arg}=)"


@pytest.mark.parametrize("page", PAGES)
def test_members_that_the_text_names_are_there(page: str) -> None:
    """Such as `ShardDataset.fetch_stats`; and of instances by their usual names, `loader.stats`."""
    usual = {"loader": "ConcurrentDataLoader", "dataset": "ShardDataset", "batch": "Batch", "stats": "LoaderStats"}
    for code in inline_code(page):
        for owner, member in re.findall(r"^([A-Za-z]\w*)\.([a-z]\w*)\b(?!/)", code):
            name = usual.get(owner, owner)
            if name not in PUBLIC or re.fullmatch(r"\w+\.(py|json|md|tf)", code):
                continue
            kind = PUBLIC[name]
            fields = {*dir(kind), *getattr(kind, "__annotations__", {}), *inspect.signature(kind).parameters}
            assert member in fields or f"self.{member}" in inspect.getsource(kind), f"{page}: {code}"
