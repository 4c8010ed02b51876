"""Implements `concurrent-loader prove RUN`: verifies what a flight recorder has logged."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concurrent_loader.cli.open_reader import open_reader
from concurrent_loader.cli.options import Json, StoreFlags, open_for_command, takes_store

if TYPE_CHECKING:
    from concurrent_loader.recorder import Proof
    from concurrent_loader.recorder.lookup import StoredSample
    from concurrent_loader.recorder.order_file import Part
    from concurrent_loader.recorder.proof import DeliveredStep

__all__ = ["prove"]

_NOT_PROVEN = 1
_MAX_SHOWN = 20


@takes_store
def prove(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that the loader got as recorder=.")],
    *,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="STEP|EPOCH:STEP", help="Show what a step saw; without an epoch, counted from the run's first step."
        ),
    ] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="List the steps that saw a sample which a later snapshot has deleted.")
    ] = False,
    head: Annotated[
        list[str] | None,
        typer.Option(metavar="HEX", help="recorder_head of a saved state, which a log must have. May be repeated."),
    ] = None,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Prove from its logs what a run delivered: every sample of each finished epoch exactly once.

    The proof needs no bucket. --step reads keys and digests there if it can, --deleted the manifests.

    Exit status: 0 proven, 1 not proven (each problem is listed), 2 the check failed.
    """
    from concurrent_loader.recorder import prove as prove_run

    proof = prove_run(run, heads=head or ())
    result: dict[str, Any] = {"run": str(run), **proof.to_dict()}
    lines = _lines(str(run), proof)
    if step is not None:
        steps = proof.step(*_place(proof, step))
        result["step"], more = _show_step(proof, steps, store_flags)
        lines += more
    if deleted:
        result["deleted"], more = _show_deleted(proof, store_flags)
        lines += more
    typer.echo(json.dumps(result) if as_json else "\n".join(lines))
    if not proof.proven:
        raise typer.Exit(_NOT_PROVEN)


def _place(proof: Proof, text: str) -> tuple[int, int]:
    epoch, separator, step = text.rpartition(":")
    if not step.isdecimal() or (separator and not epoch.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not a step such as 12345 or 3:120", param_hint="--step")
    return (int(epoch), int(step)) if separator else proof.locate(int(step))


def _lines(run: str, proof: Proof) -> list[str]:
    from concurrent_loader.storage.printable import printable
    from concurrent_loader.storage.sizes import format_count

    count = format_count(len(proof.problems), "problem")
    lines = [printable(f"{run}: {'proven' if proof.proven else f'NOT proven, {count}'}")]
    lines += [printable(f"problem: {problem}") for problem in proof.problems]
    for each in proof.epochs:
        steps = format_count(each.num_steps, "step") if each.finished else (
            f"unfinished, steps {each.first_step} to {each.stop_step - 1} of {each.num_steps}"
        )  # fmt: skip
        often = "each exactly once" if each.most_often <= 1 else f"{each.num_distinct:,} different"
        left = f", {each.num_left_out:,} not delivered" if each.num_left_out else ""
        lines.append(f"epoch {each.epoch}: {steps}, {format_count(each.num_delivered, 'sample')}, {often}{left}")
    lines.append(
        f"{format_count(proof.num_steps, 'step')} of all ranks recorded, {proof.num_superseded:,} of them repeated "
        f"from a checkpoint; numbers of ranks: {', '.join(map(str, proof.world_sizes))}"
    )
    if proof.num_unobserved:
        lines.append(
            f"{proof.num_unobserved:,} steps have no sample numbers, because of collate_fn: only their count is proven"
        )
    for content in sorted({part.content for order in proof.orders.values() for part in order.parts} - {"digests"}):
        lines.append(f"bytes are pinned by {content} alone, because the data has no digests")
    for failed in proof.failed[:_MAX_SHOWN]:
        lines.append(
            f"epoch {failed.epoch}, step {failed.step}: undecodable samples {failed.samples} were left out or replaced"
        )
    if len(proof.failed) > _MAX_SHOWN:
        lines.append(f"{len(proof.failed) - _MAX_SHOWN:,} more steps with undecodable samples; --json lists them")
    return lines + [printable(f"note: {note}") for note in proof.notes]


def _show_step(proof: Proof, steps: list[DeliveredStep], flags: StoreFlags) -> tuple[list[dict[str, Any]], list[str]]:
    from concurrent_loader.storage.errors import StorageError
    from concurrent_loader.storage.printable import printable

    shown, lines = [], []
    for each in steps:
        parts = proof.orders[each.order].parts
        sources = each.sources or [0] * len(each.samples)
        stored: dict[tuple[int, int], StoredSample] = {}
        for number, part in enumerate(parts):
            own = sorted({sample for sample, source in zip(each.samples, sources, strict=True) if source == number})
            if part.snapshot is None or not own:
                continue
            try:
                found = asyncio.run(_look_up(part, own, flags))
            except StorageError as error:
                lines.append(printable(f"note: keys and digests are not known: {error}"))
            else:
                stored |= {(number, place.sample): place for place in found}
        lines.append(f"epoch {each.epoch}, step {each.step}, rank {each.rank}: {len(each.samples)} samples")
        rows = []
        for at, (sample, source) in enumerate(zip(each.samples, sources, strict=True)):
            kind = "padding" if at >= len(each.samples) - each.num_padded else "failed" if sample in each.failed else ""
            place = stored.get((source, sample))
            row: dict[str, Any] = {"sample": sample, "source": source, "kind": kind or "delivered"}
            row |= {} if place is None else {"key": place.key, "row": place.row, "digests": place.digests}
            rows.append(row)
            where = "" if place is None else f"  {place.key} row {place.row}  " + " ".join(
                f"{name}={digest}" for name, digest in place.digests.items()
            )  # fmt: skip
            source_text = f"dataset {source} " if each.sources else ""
            lines.append(printable(f"  {source_text}{sample}{where}{f'  ({kind})' if kind else ''}".rstrip()))
        shown.append({**asdict(each), "samples": rows})
    return shown, lines


async def _look_up(part: Part, samples: list[int], flags: StoreFlags) -> list[StoredSample]:
    from concurrent_loader.recorder.lookup import check_snapshot, look_up

    snapshot = str(part.snapshot)
    async with open_reader(part.url, client=flags.client, options=flags.options, snapshot=snapshot) as reader:
        check_snapshot(reader.manifest, part)
        return await look_up(reader, samples)


def _show_deleted(proof: Proof, flags: StoreFlags) -> tuple[list[dict[str, Any]], list[str]]:
    import numpy as np

    from concurrent_loader.recorder.lookup import Deletions, find_deletions
    from concurrent_loader.storage.fetch import FetchEngine
    from concurrent_loader.storage.sizes import format_count

    async def find(part: Part) -> Deletions:
        async with open_for_command(part.url, client=flags.client, options=flags.options) as store:
            return await find_deletions(FetchEngine(store), part)

    shown: list[dict[str, Any]] = []
    lines: list[str] = []
    known: dict[tuple[str, str], Deletions] = {}
    for digest, order in proof.orders.items():
        for number, part in enumerate(order.parts):
            name = (part.url, part.digest)
            if name not in known:
                known[name] = found = asyncio.run(find(part))
                lines.append(
                    f"{part.url}: of snapshot {part.snapshot}, {format_count(int(found.deleted.sum()), 'sample')} "
                    f"deleted up to snapshot {found.newest}"
                )
                if num := int(np.count_nonzero(found.rewritten)):
                    lines.append(
                        f"note: {format_count(num, 'sample')} are in shards that were written again, so that later "
                        "deletions among them are not known"
                    )
            for epoch, step, sample in proof.steps_with(known[name].deleted, digest, number):
                shown.append({"epoch": epoch, "step": step, "sample": sample, "url": part.url})
    shown.sort(key=lambda each: (each["epoch"], each["step"], each["sample"]))
    lines += [
        f"epoch {each['epoch']}, step {each['step']} saw sample {each['sample']}, which is deleted now"
        for each in shown
    ]
    return shown, lines
