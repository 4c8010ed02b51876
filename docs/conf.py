"""Settings of the documentation site: ``make docs`` builds it with Sphinx, and fails at the first warning."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

project = "concurrent-loader"
author = "the concurrent-loader contributors"
copyright = author  # noqa: A001
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "examples"]
# Snippets shorten what does not matter to "…", which is no Python.
suppress_warnings = ["misc.highlighting_failure"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
highlight_language = "none"

# Docstrings write `name` and ``name`` alike.
default_role = "literal"
autodoc_default_options = {"members": True, "inherited-members": False}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
# Defaults are not read from the source: signatures of decorated functions may have more arguments than it.
autodoc_preserve_defaults = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "concurrent-loader"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False

# Pages of the site that are files elsewhere in the repository. A page that is listed here is a stub in docs/.
ELSEWHERE = {
    "how-to/infrastructure": ROOT / "terraform" / "README.md",
    "project/architecture": ROOT / "ARCHITECTURE.md",
    "project/changelog": ROOT / "CHANGELOG.md",
    "project/contributing": ROOT / "CONTRIBUTING.md",
    "project/measurements": ROOT / "benchmarks" / "results" / "REPORT.md",
    "project/security": ROOT / "SECURITY.md",
}


def read_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replaces a stub by its file, and makes links that leave docs/ lead to pages of the site."""
    origin = ELSEWHERE.get(docname, DOCS / f"{docname}.md")
    page = (DOCS / docname).parent
    if docname in ELSEWHERE:
        app.env.note_dependency(str(origin))
        source[0] = origin.read_text(encoding="utf-8")

    def link(found: re.Match[str]) -> str:
        image, text, path, anchor = found.groups(default="")
        if re.match(r"[a-z]+:", path) or not path:
            return found[0]
        target = (origin.parent / path).resolve()
        for name, file in ELSEWHERE.items():
            if target == file:
                target = DOCS / f"{name}.md"
        if image or target.is_relative_to(DOCS):
            return f"{image}[{text}]({os.path.relpath(target, page)}{anchor})"
        return text  # a file or folder that the site does not have

    source[0] = re.sub(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)", link, source[0])


def read_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Lets a docstring write (n, *shape), and name a page by its path.

    Asterisks are never emphasis, except those of arguments. A page that does not exist is a warning.
    """
    for number, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...")):
            continue
        parts = re.split(r"(``.*?``|`[^`]*`)", line)
        for place in range(0, len(parts), 2):
            if not line.lstrip().startswith("*"):
                parts[place] = parts[place].replace("*", r"\*")
        text = "".join(parts)
        lines[number] = re.sub(r"(?:``)?docs/([\w/-]+)\.md(?:``)?", r":doc:`/\1`", text)


def break_names(app: Sphinx, pagename: str, templatename: str, context: dict[str, object], doctree: object) -> None:
    """Lets the long names of tests and options in tables break after an underscore."""

    def cell(found: re.Match[str]) -> str:
        return re.sub(r'(?<=<span class="pre">)[^<]+', lambda name: name[0].replace("_", "_<wbr>"), found[0])

    if isinstance(body := context.get("body"), str):
        context["body"] = re.sub(r"<td.*?</td>", cell, body, flags=re.DOTALL)


def setup(app: Sphinx) -> None:
    """Connects the functions above; asterisks before napoleon, which adds some of its own."""
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)
    app.connect("html-page-context", break_names)
