"""Makes one self-contained HTML page of a sample of a dataset: thumbnails, labels, counts per class and histograms.

The page fetches nothing: its content security policy forbids it, and allows no script but its own. Every text from the
dataset is escaped by the template.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from concurrent_loader.errors import DecodeError
from concurrent_loader.preview.class_counts import ClassCount, class_names
from concurrent_loader.preview.collect import Collected
from concurrent_loader.preview.histogram import Bar, histogram
from concurrent_loader.preview.picture_columns import PictureColumns, as_boxes, guess_box_format
from concurrent_loader.preview.read_sample import NotFetched
from concurrent_loader.preview.thumbnail import Thumbnail, image_thumbnail, mask_thumbnail
from concurrent_loader.preview.value_text import short_text
from concurrent_loader.storage.printable import printable
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.sizes import format_count, format_size

__all__ = ["make_page"]

_TEMPLATES = Path(__file__).parent
_MAX_BARS = 40  # classes that are shown; the filter has all of the sample
_MAX_IMAGES = 4  # of one sample
_MAX_TEXT = 200


@dataclass(frozen=True, kw_only=True)
class _Card:
    number: int
    classes: dict[str, str]
    pictures: list[dict[str, Any]]
    values: list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class _Chart:
    title: str
    note: str
    bars: list[Bar]


def make_page(url: str, manifest: Manifest, found: Collected, *, box_format: str = "auto") -> str:
    """Makes the page.

    Args:
        url: URL of the dataset, without credentials.
        manifest: Manifest of the snapshot.
        found: The sample.
        box_format: Meaning of the four numbers of a box: ``"xyxy"``, ``"xywh"``, ``"cxcywh"``, or ``"auto"`` (default):
            what the importer recorded, or else ``"xyxy"`` unless a box contradicts it.

    Returns:
        HTML without references to other files.
    """
    schema, metadata = Schema.parse(manifest.schema), manifest.metadata
    columns = PictureColumns.of(schema)
    if box_format == "auto":
        box_format = _recorded_box_format(metadata) or guess_box_format(
            [sample[name] for _, sample in found.samples for name in columns.boxes if name in sample]
        )
    cards = [_card(number, sample, schema, metadata, columns, found, box_format) for number, sample in found.samples]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    script = (_TEMPLATES / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html.jinja").render(
        url=printable(url),
        snapshot=manifest.snapshot,
        facts=[
            ("samples", f"{found.num_total:,}"),
            ("shown", f"{len(cards):,}, chosen at random"),
            ("size", format_size(manifest.num_bytes)),
            ("shards", f"{len(manifest.table):,}"),
            ("fetched", format_size(found.fetched_bytes)),
        ],
        num_left_out=found.num_left_out,
        columns=[(printable(name), kind) for name, kind in manifest.schema.items()],
        charts=[*_class_charts(found), *_histograms(cards, found)],
        filters={name: _filter_labels(name, cards) for name in found.counts},
        cards=cards,
        # The style and the script are this project's own text, which must not be escaped.
        style=(_TEMPLATES / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _card(
    number: int,
    sample: Mapping[str, Any],
    schema: Schema,
    metadata: Mapping[str, Any],
    columns: PictureColumns,
    found: Collected,
    box_format: str,
) -> _Card:
    texts = {
        name: _shortened(short_text(schema[name], value, class_names(metadata, name))) for name, value in sample.items()
    }
    pictures = [_picture(schema, name, sample[name]) for name in columns.images if name in sample][:_MAX_IMAGES]
    first = pictures[0] if pictures else None
    if first is not None and "thumbnail" in first:
        first["masks"] = [
            mask.data_url for name in columns.masks if name in sample and (mask := _mask(schema, name, sample[name]))
        ]
        first["boxes"] = [
            [f"{edge:.2f}" for edge in box]
            for name in columns.boxes
            if name in sample and not isinstance(sample[name], NotFetched)
            for box in as_boxes(sample[name], box_format, first["width"], first["height"]).tolist()
        ]
    return _Card(
        number=number,
        classes={name: texts[name] for name in found.counts if name in texts},
        pictures=pictures,
        values=[(printable(name), text) for name, text in texts.items()],
    )


def _picture(schema: Schema, name: str, value: Any) -> dict[str, Any]:
    picture: dict[str, Any] = {"name": printable(name), "masks": [], "boxes": []}
    if isinstance(value, NotFetched):
        return {**picture, "problem": f"{format_size(value.num_bytes)}, not fetched"}
    try:
        small: Thumbnail = image_thumbnail(schema[name], value)
    except DecodeError as error:
        return {**picture, "problem": printable(str(error))}
    return {**picture, "thumbnail": small.data_url, "width": small.width, "height": small.height}


def _mask(schema: Schema, name: str, value: Any) -> Thumbnail | None:
    """Returns the thumbnail of a mask; None for one that cannot be drawn, whose value the card shows as text."""
    if isinstance(value, NotFetched):
        return None
    try:
        return mask_thumbnail(schema[name], value)
    except DecodeError:
        return None


def _recorded_box_format(metadata: Mapping[str, Any]) -> str | None:
    coco = metadata.get("coco")
    recorded = coco.get("boxes") if isinstance(coco, Mapping) else None
    return recorded if recorded in ("xyxy", "xywh") else None


def _class_charts(found: Collected) -> list[_Chart]:
    charts = []
    for name, counts in found.counts.items():
        ordered = sorted(counts, key=lambda each: -each.num_samples)
        most = ordered[0].num_samples
        note = format_count(len(counts), "class", "classes")
        if found.num_counted[name] < found.num_total:
            note += f", of {found.num_counted[name]:,} of {found.num_total:,} samples"
        if len(ordered) > _MAX_BARS:
            note += f"; the {_MAX_BARS} largest and the smallest, with {ordered[-1].num_samples:,}"
            ordered = [*ordered[:_MAX_BARS], ordered[-1]]
        charts.append(
            _Chart(title=f"samples per {printable(name)}", note=note, bars=[_bar(each, most) for each in ordered])
        )
    return charts


def _bar(count: ClassCount, most: int) -> Bar:
    return Bar(_shortened(printable(count.label)), count.num_samples, count.num_samples / most)


def _histograms(cards: list[_Card], found: Collected) -> list[_Chart]:
    sizes = [(each["width"], each["height"]) for card in cards for each in card.pictures[:1] if "thumbnail" in each]
    charts = []
    if sizes:
        sides = np.array(sizes, np.float64)
        note = f"of {len(sizes):,} images on this page"
        longer = histogram(sides.max(axis=1), "{:.0f} px".format)
        charts += [
            _Chart(title="longer side", note=note, bars=longer),
            _Chart(title="width / height", note=note, bars=histogram(sides[:, 0] / sides[:, 1], "{:.2f}".format)),
        ]
    for name, num_bytes in found.value_bytes.items():
        bars = histogram(num_bytes, format_size, logarithmic=True)
        charts.append(_Chart(title=f"bytes of {printable(name)}", note=f"of {len(num_bytes):,} values", bars=bars))
    return charts


def _filter_labels(name: str, cards: list[_Card]) -> list[str]:
    return sorted({card.classes[name] for card in cards if name in card.classes})


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
