from __future__ import annotations

from concurrent_loader.storage.html_table import html_table


def test_every_text_is_escaped() -> None:
    table = html_table("<a>", [("<b>", "&\x1b")], note="<c>\u202e")
    for text in ("<a>", "<b>", "<c>", "\x1b", "\u202e"):
        assert text not in table
    assert r"&lt;a&gt;" in table
    assert r"&amp;\x1b" in table
    assert table.count("<tr>") == 1
