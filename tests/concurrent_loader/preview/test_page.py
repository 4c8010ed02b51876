"""The page of `concurrent-loader browse`: complete, self-contained, and safe with a stranger's dataset."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from concurrent_loader.cli.app import app

HOSTILE = "<script>alert(1)</script>"


class Elements(HTMLParser):
    """Collects all elements with their attributes, and checks that they are nested."""

    VOID = frozenset({"meta", "img", "input", "rect", "br"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="session")
def text(url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    output = tmp_path_factory.mktemp("page") / "page.html"
    result = CliRunner().invoke(app, ["browse", url, "-n", "24", "-o", str(output)])
    assert result.exit_code == 0, result.stderr
    assert "24 samples" in result.stdout
    return output.read_text(encoding="utf-8")


def test_it_shows_pictures_boxes_masks_and_charts(text: str) -> None:
    page = Elements(text)
    cards = page.of("article")
    assert len(cards) == 24
    pictures = [each for each in page.of("img") if each.get("class") != "overlay"]
    assert len(pictures) == 24
    assert len(page.of("img")) == 48  # and a mask for each
    assert {each["viewbox"] for each in page.of("svg") if each.get("class") == "overlay"} <= {
        f"0 0 60 {height}" for height in range(40, 100)
    }
    assert 'x="10.00" y="10.00" width="20.00" height="10.00"' in text
    for word in ("samples per label", "longer side", "width / height", "bytes of image", "0 (cat)", "60"):
        assert word in text


def test_it_loads_nothing(text: str) -> None:
    page = Elements(text)
    for tag, attributes in page.found:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form-action"}
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in {"src", "href", "action"}:
                assert value is not None
                assert value.startswith("data:image/"), (tag, name)
    assert "url(" not in text
    assert "@import" not in text
    (policy,) = [each["content"] for each in page.of("meta") if "http-equiv" in each]
    assert policy is not None
    assert "default-src 'none'" in policy


def test_only_its_own_script_may_run(text: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_texts_of_the_dataset_are_escaped(text: str) -> None:
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    for card in Elements(text).of("article"):
        classes = json.loads(card["data-classes"] or "")
        assert set(classes) == {"label"}


def test_every_class_on_the_page_can_be_chosen(text: str) -> None:
    page = Elements(text)
    assert [each["data-column"] for each in page.of("select")] == ["label"]
    shown = {json.loads(card["data-classes"] or "")["label"] for card in page.of("article")}
    assert {each["value"] for each in page.of("option")} == {"", *shown}


def test_a_file_is_replaced_only_when_asked(url: str, tmp_path: Path) -> None:
    output = tmp_path / "mine.html"
    output.write_text("mine")
    result = CliRunner().invoke(app, ["browse", url, "-n", "1", "-o", str(output)])
    assert result.exit_code == 2
    assert output.read_text() == "mine"
    assert CliRunner().invoke(app, ["browse", url, "-n", "1", "-o", str(output), "--overwrite"]).exit_code == 0
    assert output.read_text().startswith("<!doctype html>")
