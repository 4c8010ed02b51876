from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cat/é 日本.jpg", "cat/é 日本.jpg"),
        ("a\nb", r"a\nb"),
        ("caf\udce9", r"caf\xe9"),
        ("\x1b[31m\x9b", r"\x1b[31m\x9b"),
        ("\ud800\u202e", r"\ud800\u202e"),
    ],
)
def test_what_cannot_be_shown_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_it_can_be_printed_and_encoded(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode().decode() == shown
