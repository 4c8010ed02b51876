"""Makes foreign names safe to show in a terminal or a manifest. No I/O."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Returns a text with every unprintable character escaped.

    So line breaks and control characters cannot move the cursor, and the result can be encoded even if a file name is
    not UTF-8 (`os.fsdecode` turns its bytes into lone surrogates).

    ::

        printable("caf\udce9\n.jpg")  # r"caf\xe9\n.jpg"
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode()
