"""Makes small HTML tables for notebooks, in which every text is escaped. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from concurrent_loader.storage.printable import printable

__all__ = ["html_table"]


def html_table(title: str, rows: Iterable[tuple[str, str]], *, note: str = "") -> str:
    """Returns a table of names and values as HTML.

    Args:
        title: Caption above the table.
        rows: Name and value of each row, as plain text.
        note: Line below the table.

    Example:
        >>> from concurrent_loader.storage.html_table import html_table
        >>> "&lt;b&gt;" in html_table("photos", [("name", "<b>")])
        True
    """
    cells = "".join(
        f'<tr><th style="text-align:left">{_safe(name)}</th><td style="text-align:left">{_safe(value)}</td></tr>'
        for name, value in rows
    )
    below = f"<div>{_safe(note)}</div>" if note else ""
    return f"<div><strong>{_safe(title)}</strong><table><tbody>{cells}</tbody></table>{below}</div>"


def _safe(text: str) -> str:
    return escape(printable(text))
