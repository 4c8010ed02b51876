"""Names that others chose, as a terminal or a manifest can show them. No I/O."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Returns a text in which every character that cannot be shown is escaped.

    Line breaks, control characters and the like cannot move the cursor, and bytes of a file name that are not UTF-8
    (lone surrogates, as `os.fsdecode` makes them) can be encoded again.

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
