"""Implements `concurrent-loader whatif FILE`: predicts the speed of a recorded run under other conditions."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.options import Json

if TYPE_CHECKING:
    from concurrent_loader.whatif.advice import Advice
    from concurrent_loader.whatif.simulation import Prediction

__all__ = ["whatif"]


def _share(text: str) -> float:
    """Parses ``50%`` or ``0.5``."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"expected a share such as 50% or 0.5, got {text!r}")
    return share


def whatif(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recording, written by loader.record.")],
    *,
    accelerators: Annotated[
        int, typer.Option(min=1, help="Number of accelerators that take a batch each in every step.")
    ] = 1,
    step_ms: Annotated[
        float | None, typer.Option(min=0, help="Milliseconds that they compute on it. Default: as recorded.")
    ] = None,
    latency_ms: Annotated[
        float | None, typer.Option(min=0, help="Milliseconds to a request's first byte. Default: as recorded.")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Number of cores. Default: as recorded.")] = None,
    cache: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Share of the data in the cache, such as 50%.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict samples per second and utilisation of a recorded run with other cores, latency, cache and accelerators.

    Also prints what bounds the rate, and the three cheapest changes that help.
    """
    from concurrent_loader.storage.errors import ConfigurationError
    from concurrent_loader.whatif.advice import advise
    from concurrent_loader.whatif.run_trace import RunTrace
    from concurrent_loader.whatif.simulation import Scenario, predict

    trace = RunTrace.load(file)
    scenario = Scenario.of(trace)
    scenario = scenario if cores is None else scenario.with_cores(cores)
    scenario = replace(
        scenario,
        accelerators=accelerators,
        step_s=None if step_ms is None else step_ms / 1000,
        latency_s=scenario.latency_s if latency_ms is None else latency_ms / 1000,
        cached=scenario.cached if cache is None else _share(cache),
    )
    if scenario.cached < 1 and not trace.num_gets:
        raise ConfigurationError("the recording has no requests; record an epoch that reads from the store")
    found = predict(trace, scenario)
    advice = advise(trace, scenario, found)
    if as_json:
        told = {"scenario": asdict(scenario), "prediction": asdict(found), "changes": [asdict(one) for one in advice]}
        typer.echo(json.dumps(told))
    else:
        typer.echo("\n".join(_lines(trace.num_samples / trace.wall_s, found, advice)))


def _lines(recorded_s: float, found: Prediction, advice: list[Advice]) -> list[str]:
    busy = f"accelerators busy {found.utilisation:.0%}, cores busy {found.cores_busy:.0%}"
    lines = [
        f"recorded:  {recorded_s:,.0f} samples/s",
        f"predicted: {found.samples_s:,.0f} samples/s, {busy}",
        f"bound by:  {found.bound_by}",
    ]
    if not advice:
        return [*lines, "no change that was tried makes it 5 % faster"]
    return [
        *lines,
        "cheapest changes that help:",
        *(
            f"  ${one.dollars_h:.4f}/h  {one.change}: {one.samples_s:,.0f} samples/s (+{one.gain:.0%})"
            for one in advice
        ),
    ]
