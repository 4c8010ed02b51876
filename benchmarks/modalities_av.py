"""Audio and clips of videos from a bucket behind 30 ms, for `benchmarks.modalities`.

Epochs in turns over the same files. The other side is torch's DataLoader with a warm worker process per core, one GET
per file by obstore, and torchcodec on the whole file: some seconds of audio, or 16 frames of a video. Ours opens the
dataset each time, without a cache. torchcodec needs FFmpeg's shared libraries.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import av
import numpy as np
import obstore
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.bucket import Bucket, obstore_client, open_bucket, put_all
from benchmarks.command import in_turns
from benchmarks.machine import num_cores
from concurrent_loader import Audio, Clips, ConcurrentDataLoader, ShardDataset, ShardWriter
from concurrent_loader.storage.media import ClipIndex, clip_index

AUDIO, CLIPS = Audio(sample_rate=16000, seconds=2, channels=1), Clips(16, stride=2)


class Files(Dataset[torch.Tensor]):
    """One GET per file, then torchcodec; the client is made in the process that reads."""

    def __init__(self, kind: str, bucket: str, options: Mapping[str, str], keys: list[str]) -> None:
        self.kind, self.bucket, self.options, self.keys, self.client = kind, bucket, dict(options), keys, None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Any:
        torchcodec: Any = import_module("torchcodec.decoders")
        self.client = self.client or obstore_client(self.bucket, self.options)  # type: ignore[assignment]
        data = bytes(obstore.get(self.client, self.keys[index]).bytes())  # type: ignore[arg-type]
        share = float(torch.rand(()))
        if self.kind == "video":
            decoder = torchcodec.VideoDecoder(data, seek_mode="approximate", num_ffmpeg_threads=1)
            frames = CLIPS.frame_numbers(decoder.metadata.num_frames, share)
            return decoder.get_frames_at(frames.tolist()).data
        sound = torchcodec.AudioDecoder(data, sample_rate=16000, num_channels=1)
        return sound.get_samples_played_in_range(share * 7.9, share * 7.9 + 2).data[:, :31000]


def flac(number: int) -> bytes:
    """A sound of ten seconds, stereo, 44,100 samples per second."""
    time = np.arange(441000) / 44100
    noise = np.random.default_rng(number).normal(0, 800, (2, len(time)))
    samples = (8000 * np.sin(2 * np.pi * (200 + number) * time) + noise).astype(np.int16)
    with av.open(file := io.BytesIO(), "w", format="flac") as container:
        stream = container.add_stream("flac", rate=44100, layout="stereo")
        interleaved = np.ascontiguousarray(samples.T.reshape(1, -1))
        frame = av.AudioFrame.from_ndarray(interleaved, format="s16", layout="stereo")
        frame.sample_rate = 44100
        for each in (frame, None):
            container.mux(stream.encode(each))
    return file.getvalue()


def mp4(number: int, seconds: int) -> bytes:
    """A video of 426 x 240 pixels, 30 frames per second, with a group of pictures per second."""
    rng = np.random.default_rng(number)
    scene = rng.integers(0, 256, (30, 60, 3), dtype=np.uint8).repeat(16, 0).repeat(16, 1)
    with av.open(file := io.BytesIO(), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "superfast", "crf": "26"})
        stream.width, stream.height, stream.codec_context.gop_size = 426, 240, 30
        for at in range(30 * seconds):
            image = scene[at % 200 :, at % 400 :][:240, :426] // 2 + rng.integers(0, 24, (240, 426, 1), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def compare(kind: str, how: Any, files: dict[str, bytes], bucket: Bucket, rounds: int) -> dict[str, Any]:
    """Measures samples per second of both sides over the same files, in turns."""
    url, name = f"s3://{bucket.name}/{kind}", f"{kind}.clip_index"
    put_all(f"{url}-files", bucket.direct, files)
    indexes = [{name: clip_index(data)} if kind == "video" else {} for data in files.values()]
    columns = {kind: kind, **dict.fromkeys(indexes[0], "json")}
    with ShardWriter(url, columns=columns, storage_options=bucket.direct) as writer:
        for data, index in zip(files.values(), indexes, strict=True):
            writer.write({kind: data, **index})
    workers: dict[str, Any] = {"num_workers": num_cores(), "multiprocessing_context": "forkserver"}
    dataset = Files(kind, bucket.name, bucket.remote, [f"{kind}-files/{key}" for key in files])
    other = DataLoader(dataset, 4, shuffle=True, persistent_workers=True, **workers)
    assert sum(map(len, other)) == len(files)  # starts the workers
    fetched = []

    def epoch(side: str) -> float:
        began = perf_counter()
        if side == "torch":
            found = sum(map(len, other))
        else:
            with ShardDataset(url, storage_options=bucket.remote) as own:
                found = sum(len(each[kind]) for each in ConcurrentDataLoader(own, 4, shuffle=True, decode={kind: how}))
                fetched.append(own.fetch_stats.num_bytes)
        assert found == len(files)
        return found / (perf_counter() - began)

    rates: dict[str, list[float]] = {"ours": [], "torch": []}
    for _, side in in_turns(list(rates), rounds):
        rates[side].append(epoch(side))
    ratios = [one / two for one, two in zip(rates["ours"], rates["torch"], strict=True)]
    figures: dict[str, Any] = {f"{side}_per_s": round(median(each), 2) for side, each in rates.items()}
    figures |= {"ratio": round(median(ratios), 2), "spread": [round(min(ratios), 2), round(max(ratios), 2)]}
    if kind == "video":
        parsed = [ClipIndex.parse(each[name], len(data)) for each, data in zip(indexes, files.values(), strict=True)]
        spans = [index.span(*CLIPS.choose(share, index)) for index in parsed for share in np.arange(0, 1, 0.01)]
        clip_bytes = sum(end - start for start, end in spans) / 100  # of an epoch, on average
        figures |= {"file_bytes": sum(map(len, files.values())), "fetched_bytes": int(median(fetched))}
        figures["bytes_ratio"] = round(median(fetched) / clip_bytes, 2)
    return figures


def measure(num_sounds: int, num_videos: int, video_s: int, rounds: int) -> dict[str, Any]:
    """Measures audio, then video."""
    sounds = {f"{number}.flac": flac(number) for number in range(num_sounds)}
    videos = {f"{number}.mp4": mp4(number, video_s) for number in range(num_videos)}
    with tempfile.TemporaryDirectory() as folder, open_bucket(Path(folder), latency_ms=30) as bucket:
        audio = compare("audio", AUDIO, sounds, bucket, rounds)
        video = compare("video", CLIPS, videos, bucket, rounds)
    found = {"latency": bucket.latency, "audio": audio, "video": video, "audio_vs_best": audio["ratio"]}
    return found | {"video_vs_whole_file": video["ratio"], "video_bytes_ratio": video["bytes_ratio"]}
