from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from concurrent_loader import ConcurrentDataLoader, ShardDataset, TransformError
from concurrent_loader.stats.trace import trace_events
from concurrent_loader.storage import ConfigurationError, ShardWriter
from concurrent_loader.storage.span_recorder import RecordedSpan, SpanRecorder, active


def tracks(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The spans of a file by the name of their track."""
    content = json.loads(path.read_text())
    names = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in content["traceEvents"]
        if each["name"] == "thread_name"
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for each in content["traceEvents"]:
        if each["ph"] == "X":
            found.setdefault(names[each["pid"], each["tid"]], []).append(each)
    return found


def test_overlapping_spans_get_tracks_of_their_own() -> None:
    spans = [
        RecordedSpan(5, "request", 0, "", name, start, end, {})
        for name, start, end in (("a", 0, 10), ("b", 1, 4), ("c", 2, 3), ("d", 4, 6), ("e", 10, 11))
    ] + [RecordedSpan(6, "thread", 44, "decode 0", "read", 0.5, 0.75, {"step": 3})]
    events = list(trace_events(spans, own_pid=5))
    lanes = {each["name"]: each["tid"] for each in events if each["ph"] == "X"}
    assert lanes["b"] == lanes["d"]
    assert lanes["a"] == lanes["e"]
    assert len({lanes[name] for name in "abc"}) == 3
    assert {each["args"]["name"] for each in events if each["name"] == "process_name"} == {"loader", "worker process 6"}
    assert next(each for each in events if each["name"] == "read")["dur"] == 250_000
    assert list(trace_events([], own_pid=1)) == []


def test_the_newest_spans_are_kept() -> None:
    recorder = SpanRecorder(3)
    for number in range(5):
        recorder.add("batch", str(number), 0.0, 1.0)
    assert (recorder.num_spans, recorder.num_dropped) == (5, 2)
    assert [span.name for span in recorder.drain()] == ["2", "3", "4"]


def test_a_trace_has_a_track_per_stage_thread_and_request(dataset: ShardDataset, tmp_path: Path) -> None:
    loader = ConcurrentDataLoader(dataset, 16, num_threads=2, transform=lambda sample: sample)
    path = tmp_path / "traces" / "run.json"
    with loader.trace(path):
        num_batches = len(list(loader)) + len(list(loader))
        assert not path.exists()
    found = tracks(path)
    assert {"consumer 1", "batch 1", "request 1"} <= set(found)
    threads = {name: spans for name, spans in found.items() if spans[0]["cat"] == "thread"}
    assert 1 <= len(threads) <= 4
    assert {each["name"] for spans in threads.values() for each in spans} == {"read", "transform", "collate"}
    requests = [each for name, spans in found.items() if name.startswith("request") for each in spans]
    assert sum(each["args"]["bytes"] for each in requests) > 50_000
    assert num_batches // 2 <= sum(each["name"] == "wait" for each in found["consumer 1"]) <= num_batches + 2
    for spans in found.values():
        assert all(before["ts"] + before["dur"] <= after["ts"] + 1 for before, after in pairwise(spans))
    steps = {each["args"]["step"] for name, spans in found.items() if name.startswith("batch") for each in spans}
    assert steps == set(range(num_batches // 2))
    size = path.stat().st_size
    list(loader)
    assert active() is None
    assert path.stat().st_size == size


def test_without_a_block_a_trace_ends_with_the_iteration_also_after_an_error(
    dataset: ShardDataset, tmp_path: Path
) -> None:
    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["label"] == 40:
            raise ValueError("no")
        return sample

    loader = ConcurrentDataLoader(dataset, 16, num_threads=1, transform=fails)
    loader.trace(tmp_path / "all.json", max_spans=4)
    with pytest.raises(ConfigurationError, match="another trace"):
        loader.trace(tmp_path / "second.json")
    with pytest.raises(TransformError):
        list(loader)
    content = json.loads((tmp_path / "all.json").read_text())
    assert content["otherData"]["dropped_spans"] > 0
    assert content["otherData"]["spans"] == 4
    with pytest.raises(TransformError), loader.trace(tmp_path / "block.json"):
        list(loader)
    assert "consumer 1" in tracks(tmp_path / "block.json")
    with pytest.raises(ConfigurationError, match="positive"):
        loader.trace(tmp_path / "third.json", max_spans=0)
    assert active() is None


@pytest.mark.slow
def test_spans_join_a_profile_of_torch(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, 64, num_threads=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        list(loader)
    assert "loader.wait" in {event.key for event in profile.key_averages()}


@pytest.mark.processes
def test_workers_are_processes_of_the_trace(tmp_path: Path) -> None:
    url = str(tmp_path / "data")
    with ShardWriter(url, columns={"label": "int64", "data": "bytes"}, shard_size="4KiB") as writer:
        for number in range(60):
            writer.write({"label": number, "data": bytes(300)})
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(dataset, 8, num_workers=2)
        with loader.trace(tmp_path / "run.json"):
            list(loader)
    content = json.loads((tmp_path / "run.json").read_text())
    names = {each["args"]["name"].split()[0] for each in content["traceEvents"] if each["name"] == "process_name"}
    assert names == {"loader", "worker"}
    spans = [each for each in content["traceEvents"] if each["ph"] == "X"]
    waits = [each for each in spans if each["cat"] == "consumer"]
    began, ended = waits[0]["ts"], waits[-1]["ts"] + waits[-1]["dur"]
    collated = [each for each in spans if (each["name"], each["cat"]) == ("collate", "thread")]
    assert len({each["pid"] for each in collated}) == 2
    assert all(began <= each["ts"] and each["ts"] + each["dur"] <= ended for each in collated)
