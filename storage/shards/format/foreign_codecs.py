"""Codecs for payload values of virtual shards, whose bytes are those of another format."""

from __future__ import annotations

from collections.abc import Callable

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.format.npy_codec import NpyCodec
from concurrent_loader.storage.shards.format.value_codecs import Codec

__all__ = ["foreign_codec"]

_CODECS: dict[str, Callable[[str], Codec]] = {"npy": NpyCodec}


def foreign_codec(encoding: str, type_: str) -> Codec:
    """Returns the codec of an encoding; it only decodes.

    Args:
        encoding: Name of the encoding, such as ``"npy"``.
        type_: Column type that the decoded values have.

    Raises:
        SchemaError: The encoding is unknown, or does not give values of this type.
    """
    make = _CODECS.get(encoding)
    if make is None:
        raise SchemaError("unknown encoding of a value; upgrade concurrent-loader", got=encoding)
    return make(type_)
