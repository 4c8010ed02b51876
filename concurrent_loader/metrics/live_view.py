"""Turns the answers of running loaders into what `concurrent-loader top` and notebooks show. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from concurrent_loader.storage.printable import printable
from concurrent_loader.storage.sizes import format_size

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["live_rows", "live_table"]

_BAR = 10  # letters
_NAME_WIDTH = 9
_COLUMN_WIDTH = 40  # narrowest column of a loader
_SHOWN_SHARE = 0.01
_SLOW_S = 1.0
_MAX_SLOW = 3


def live_rows(loader: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the stages of a loader, in the order of the data, with their fill levels, rates and waits.

    Args:
        loader: Element of ``loaders`` in an answer of `concurrent_loader.metrics.live_server.answer`.

    Returns:
        Name and text of each row. Rows that do not apply to the loader are left out.
    """
    stages, window, stats = loader["stages"], loader["window"], loader["stats"]
    fetch, cache = stats["fetch"], stats["cache"]
    seconds = max(1e-9, window["seconds"])
    rows = [
        ("position", _position(loader)),
        (
            "speed",
            f"{window['num_samples'] / seconds:,.0f} samples/s, {window['num_batches'] / seconds:,.1f} batches/s",
        ),
    ]
    if fetch["num_gets"] or fetch["limit"]:
        rows += [
            ("store", f"{_bar(fetch['in_flight'], fetch['limit'])} {fetch['in_flight']} of {fetch['limit']} in flight"),
            ("", f"{format_size(window['num_bytes'] / seconds)}/s, {window['num_gets'] / seconds:,.1f} GETs/s"),
            (
                "",
                f"first byte {fetch['first_byte_p50_s'] * 1e3:,.0f} ms, 95 % {fetch['first_byte_p95_s'] * 1e3:,.0f} ms",
            ),
        ]
        troubles = [("retried", "num_retries"), ("throttled", "num_throttled"), ("hedged", "num_hedges")]
        found = [f"{fetch[name]:,} {what}" for what, name in troubles if fetch[name]]
        rows += [("", ", ".join(found))] if found else []
    rows += [("slow", _slow_request(each)) for each in stages["slow"] if each["for_s"] >= _SLOW_S][:_MAX_SLOW]
    hits = cache["num_hits"] + cache["num_sparse_hits"]
    misses = cache["num_misses"] + cache["num_sparse_misses"]
    if hits or misses:
        rows.append(("cache", f"{_bar(hits, hits + misses)} {hits:,} hits, {misses:,} misses"))
    if stages["max_prefetched_bytes"]:
        ahead, limit = stages["prefetched_bytes"], stages["max_prefetched_bytes"]
        rows.append(("prefetch", f"{_bar(ahead, limit)} {format_size(ahead)} of {format_size(limit)}"))
    if stages["num_threads"]:
        busy, limit = stages["num_busy_threads"], stages["num_threads"]
        rows.append(("threads", f"{_bar(busy, limit)} {busy} of {limit} busy"))
    if stages["max_batches"]:
        ready, limit = stages["num_ready"], stages["max_batches"]
        rows.append(("batches", f"{_bar(ready, limit)} {ready} ready, {stages['num_making']} being made, of {limit}"))
    if stages["max_on_device"]:
        staged, limit = stages["num_on_device"], stages["max_on_device"]
        rows.append(("device", f"{_bar(staged, limit)} {staged} of {limit}"))
    rows.append((f"last {window['seconds']:.0f} s", _time_shares(window)))
    rows.append(("now", _now(loader)))
    return rows


def _slow_request(request: dict[str, Any]) -> str:
    worker = "" if request.get("worker") is None else f"worker {request['worker']}: "
    return f"{request['for_s']:.1f} s {worker}{request['key']}"


def _position(loader: dict[str, Any]) -> str:
    total = "" if loader["num_steps"] is None else f" of {loader['num_steps']:,}"
    return f"epoch {loader['epoch']}, step {loader['step']:,}{total}"


def _time_shares(window: dict[str, float]) -> str:
    """Returns where the time went, the largest share first."""
    total_s = window["total_s"]
    if total_s <= 0:
        return "nothing was asked for"
    parts = {"training": max(0.0, total_s - window["wait_s"] - window["device_s"]), "device": window["device_s"]}
    known = {name: value for name, value in window.items() if name.startswith("wait_") and name != "wait_s"}
    parts |= {f"wait for {name[5:-2]}": value for name, value in known.items()}
    parts["wait"] = max(0.0, window["wait_s"] - sum(known.values()))  # of a loader that knows no causes
    shares = sorted(((value / total_s, name) for name, value in parts.items()), reverse=True)
    return ", ".join(f"{name} {share:.0%}" for share, name in shares if share >= _SHOWN_SHARE)


def _now(loader: dict[str, Any]) -> str:
    if loader["state"] != "wait":
        return "training" if loader["state"] == "consumer" else loader["state"]
    batch = loader["stages"]["batch"]
    return "waiting" if batch is None else f"waiting: the next batch {batch['what']}, for {batch['for_s']:.1f} s"


def _bar(value: float, limit: float) -> str:
    full = round(_BAR * min(1.0, value / limit)) if limit > 0 else 0
    return "█" * full + "░" * (_BAR - full)


def live_table(answers: Sequence[dict[str, Any]], width: int) -> RenderableType:
    """Returns a table with a column for each loader, ranks side by side as far as the width allows.

    Args:
        answers: Answers of processes, in the order to show them.
        width: Width of the terminal in letters.
    """
    from rich.console import Group
    from rich.table import Table

    loaders = [(answer, loader) for answer in answers for loader in answer["loaders"]]
    abreast = max(1, (width - _NAME_WIDTH - 2) // (_COLUMN_WIDTH + 3))
    tables = []
    for first in range(0, len(loaders), abreast):
        group = loaders[first : first + abreast]
        table = Table(width=width, pad_edge=False, show_lines=False)
        table.add_column("", width=_NAME_WIDTH, no_wrap=True)
        for answer, loader in group:
            head = f"{answer['program'] or 'python'}, process {answer['pid']}, rank {loader['rank']}"
            title = _cell(f"{head} of {loader['world_size']}\n{loader['dataset']}")
            table.add_column(title, ratio=1, overflow="fold")
        columns = [_by_name(live_rows(loader)) for _, loader in group]
        names = list(dict.fromkeys(name for column in columns for name in column))
        for name in names:
            table.add_row(name, *(_cell(column.get(name, "")) for column in columns))
        tables.append(table)
    return Group(*tables)


def _cell(text: str) -> str:
    """Escapes what another process has sent, so that it cannot steer the terminal."""
    from rich.markup import escape

    return escape("\n".join(printable(line) for line in text.split("\n")))


def _by_name(rows: list[tuple[str, str]]) -> dict[str, str]:
    """Joins the lines of each stage; a line without a name belongs to the stage above."""
    found: dict[str, str] = {}
    stage = ""
    for name, text in rows:
        name = "last 30 s" if name.startswith("last ") else name
        stage = name or stage
        found[stage] = f"{found[stage]}\n{text}" if stage in found else text
    return found
