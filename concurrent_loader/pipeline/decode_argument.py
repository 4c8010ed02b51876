"""Checks the loader's arguments about columns, and warns about masks and boxes that do not follow an image's crop."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from concurrent_loader.augment import Crop, Linked
from concurrent_loader.batch.ragged import Ragged, companions, ragged_columns
from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.order.packing import Packed
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.images.column_names import guess_content
from concurrent_loader.storage.shards.format.schema import ColumnKind

__all__ = ["check_as_tuple", "check_decode", "check_packed", "check_ragged", "warn_of_companions"]

_FORM = (
    "decode={column: how}, with how = 'rgb', 'gray', 'unchanged', RandomResizedCrop(224), crop.like(column, …), "
    "Audio(…), Clips(…) or a function of the bytes"
)


def check_decode(decode: object) -> None:
    """Checks the form of the ``decode`` argument.

    Raises:
        ConfigurationError: The argument has another form; the error shows the right one.
    """
    if not isinstance(decode, Mapping):
        raise ConfigurationError("decode must map columns to ways of decoding", expected=_FORM, got=decode)
    for name, how in decode.items():
        kind = how if isinstance(how, type) else type(how)
        if kind.__module__.startswith("torchvision."):
            raise ConfigurationError(
                "decode does not take torchvision transforms, because they need decoded images: pass it as transform= "
                "(one sample), or use the crops and Augment of concurrent_loader, see docs/how-to/augmentation.md",
                column=str(name), expected=_FORM, got=kind.__name__,
            )  # fmt: skip
        if isinstance(how, type):
            raise ConfigurationError(
                f"decode needs an object, not the class: write {how.__name__}(…)", column=str(name), expected=_FORM,
                got=how.__name__,
            )  # fmt: skip
        if not (isinstance(how, str | Crop | Linked) or callable(how)):
            raise ConfigurationError(
                "decode has an invalid value for a column", column=str(name), expected=_FORM, got=how
            )


def check_ragged(
    ragged: Mapping[str, Ragged], dataset: LoadableDataset, decode: Mapping[str, Any], *, has_transform: bool
) -> None:
    """Checks that the columns of the ``ragged`` argument can be ragged. With a transform, any column can.

    Raises:
        ConfigurationError: A column does not exist, has one shape or no numbers, needs another arrangement, or adds a
            column that exists already.
    """
    known = dict.fromkeys(name for part in dataset.parts for name in part.columns)
    for name, how in ragged.items():
        taken = [each for each in companions(name, how) if each in known]
        if taken:
            raise ConfigurationError(
                f"ragged would add the column {taken[0]!r}, which the dataset has already; rename or leave out one of "
                "them", column=name,
            )  # fmt: skip
        if has_transform:
            continue
        if name not in known:
            raise ConfigurationError(
                "ragged names a column that the dataset does not have", column=name, expected=list(known)
            )
        for part in dataset.parts:
            if name not in part.columns or (how == "packed" and part.schema[name].type in ("str", "bytes")):
                continue  # text is packed as its bytes
            _check_ragged_type(name, part.schema[name].kind, part.schema[name].base_type, decode.get(name))


def check_packed(
    packed: Packed, dataset: LoadableDataset, ragged: Mapping[str, Ragged], functions: Mapping[str, object]
) -> None:
    """Checks that a loader's arguments leave documents as the plan expects them.

    Args:
        packed: The loader's packing.
        dataset: Dataset of the loader.
        ragged: The ``ragged`` argument.
        functions: Arguments that process single samples, by name.

    Raises:
        ConfigurationError: The column is not loaded, or another argument would change its values.
    """
    given = [name for name, value in functions.items() if value]
    if given:
        raise ConfigurationError(
            f"{given[0]} works on whole samples, but Packed cuts them into rows of known lengths; leave it out, and "
            "store tokens (concurrent-loader ingest text --tokenizer)"
        )
    known = list(dict.fromkeys(name for part in dataset.parts for name in part.columns))
    seq_lens = f"{packed.column}_seq_lens"
    if packed.column not in known or packed.column in ragged or seq_lens in known:
        raise ConfigurationError(
            f"Packed needs its column among those of the dataset, and not in ragged=, and adds the column {seq_lens!r}",
            column=packed.column, got=known,
        )  # fmt: skip


def check_as_tuple(
    names: object, dataset: LoadableDataset, ragged: Mapping[str, Any] | None, functions: Sequence[object]
) -> tuple[str, ...] | None:
    """Checks the ``as_tuple`` argument, and returns it.

    Args:
        names: Value of the argument.
        dataset: Dataset of the loader.
        ragged: The ``ragged`` argument, which adds columns.
        functions: Functions of the user that may change the columns of a batch, or None instead of them.

    Raises:
        ConfigurationError: The argument is not a sequence of names, or a column does not exist.
    """
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            "as_tuple must be a sequence of column names", expected="as_tuple=('image', 'label')", got=names
        )
    known = [name for part in dataset.parts for name in part.columns]
    known += [each for name, how in ragged_columns(ragged).items() for each in companions(name, how)]
    for name in names:
        if name not in known and not any(functions):
            raise ConfigurationError(
                "as_tuple names a column that the batches do not have", column=name, expected=list(dict.fromkeys(known))
            )
    return tuple(names)


def _check_ragged_type(name: str, kind: ColumnKind, column_type: str, decode: Any) -> None:
    if isinstance(decode, Linked):
        if decode.is_mask:
            raise ConfigurationError("a crop gives all masks one size; leave the column out of ragged=", column=name)
        return
    if isinstance(decode, Crop):
        raise ConfigurationError("a crop gives all images one size; leave the column out of ragged=", column=name)
    if decode is None and kind is ColumnKind.FIXED:
        raise ConfigurationError(
            "all values of this column have one shape; leave the column out of ragged=", column=name, got=column_type
        )
    if decode is None and column_type != "json" and not column_type.endswith("]"):
        raise ConfigurationError(
            "the values of this column are not arrays: decode it, or leave it out of ragged=", column=name,
            got=column_type,
        )  # fmt: skip


def warn_of_companions(dataset: LoadableDataset, decode: Mapping[str, Any]) -> None:
    """Warns if an image's crop interpolates a mask, or leaves masks and boxes where they were.

    Masks are recognized by column names such as ``mask``, ``seg`` or ``depth``, boxes by names such as ``box``,
    ``bboxes`` or ``keypoints``.
    """
    cropped = [name for name, how in decode.items() if isinstance(how, Crop)]
    columns = dict.fromkeys(name for part in dataset.parts for name in part.columns)
    blurred = [name for name in cropped if guess_content(name) in ("mask", "depth")]
    images = [name for name in cropped if name not in blurred]
    linked = [name for name, how in decode.items() if isinstance(how, Linked)]
    left = [name for name in columns if name not in (*cropped, *linked) and guess_content(name) is not None]
    if blurred:
        warnings.warn(
            f"decode crops the column {', '.join(map(repr, blurred))}, which looks like a mask: a crop interpolates "
            "between its values. Link it: decode={'image': crop, 'mask': crop.like('image', interpolation='nearest')}",
            stacklevel=3,
        )
    if images and left:
        warnings.warn(
            f"decode crops {', '.join(map(repr, images))}, but {', '.join(map(repr, left))} of the same samples do not "
            "follow the crop. Link them by crop.like(…), see docs/how-to/masks_and_boxes.md, or leave them out by "
            "dataset.select_columns",
            stacklevel=3,
        )
