"""Audio and clips through a loader: what is fetched, verified, repeated and left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch

from concurrent_loader import (
    Audio,
    Clips,
    ConcurrentDataLoader,
    DatasetChanged,
    DecodeError,
    Mixture,
    ObjectDataset,
    ShardDataset,
    ShardWriter,
    add_column,
    drop_column,
    rename_column,
)
from concurrent_loader.storage.media import ClipIndex, clip_index
from concurrent_loader.storage.stores.backends.memory import MemoryStore

HOW = Clips(6, stride=2)


@pytest.fixture(scope="module")
def videos(media: Any) -> list[bytes]:
    return [media.video_file(num_frames=60 + 12 * number, noise=30, size=(96, 128)) for number in range(4)]


@pytest.fixture(scope="module")
def url(videos: list[bytes], media: Any) -> str:
    """Four videos with their indexes, and a sound of another format for each, in two shards."""
    url = f"memory://{uuid4().hex}"
    columns = {"video": "mp4", "video.clip_index": "json", "sound": "audio", "label": "int64"}
    with ShardWriter(url, columns=columns, shard_size="1MiB") as writer:
        for label, (video, kind) in enumerate(zip(videos, ("wav", "flac", "mp3", "opus"), strict=True)):
            sound = media.audio_file(kind)
            writer.write({"video": video, "video.clip_index": clip_index(video), "sound": sound, "label": label})
    return url


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all bodies that memory stores return."""
    sizes: list[int] = []
    get = MemoryStore._get

    async def counted(self: MemoryStore, key: str, span: tuple[int, int] | None, if_match: str | None) -> Any:
        result = await get(self, key, span, if_match)
        sizes.append(len(result.data))
        return result

    monkeypatch.setattr(MemoryStore, "_get", counted)
    return sizes


def clips_of(loader: Any) -> dict[int, torch.Tensor]:
    """Label → clip, over one epoch."""
    return {
        label: clip for batch in loader for label, clip in zip(batch["label"].tolist(), batch["video"], strict=True)
    }


def test_only_the_groups_of_a_clip_are_fetched(url: str, videos: list[bytes], served: list[int]) -> None:
    with ShardDataset(url, columns=["video", "label"]) as dataset:
        dataset.column("label")  # the index of the dataset is not the clips'
        before = sum(served)
        loader = ConcurrentDataLoader(dataset, 2, shuffle=True, seed=1, decode={"video": HOW})
        found = clips_of(loader)
        fetched = sum(served) - before
        (decoder,) = loader._processing.decoders.values()
    own = 0
    for label, video in enumerate(videos):
        index = ClipIndex.parse(clip_index(video), len(video))
        draw = decoder.draws(0, torch.tensor([label]).numpy())[0]
        start, end = index.span(*HOW.choose(draw, index))
        own += end - start
        assert torch.equal(found[label], HOW.decode(video, draw, max_pixels=10**6))
    assert own < sum(map(len, videos)) / 2
    assert fetched <= 1.5 * own


def test_the_index_is_no_part_of_a_sample_unless_it_is_asked_for(url: str) -> None:
    with ShardDataset(url) as dataset:
        assert dataset.columns == ("video", "sound", "label")
        assert set(dataset[0]) == {"video", "sound", "label"}
        assert dataset.column("video.clip_index")[0]["codec"] == "h264"
        sample = dataset.sample(3, decode={"sound": Audio(seconds=0.5), "video": Clips(2)})
        assert sample["video"].shape == (2, 3, 96, 128)
        assert sample["sound"].shape == (1, 24000)


def test_the_index_is_renamed_and_dropped_with_its_column(videos: list[bytes], tmp_path: Path) -> None:
    with ShardWriter(tmp_path, columns={"video": "mp4", "video.clip_index": "json", "label": "int64"}) as writer:
        writer.write({"video": videos[0], "video.clip_index": clip_index(videos[0]), "label": 0})
    assert rename_column(tmp_path, "video", "film").schema == {
        "film": "mp4", "film.clip_index": "json", "label": "int64",
    }  # fmt: skip
    with ShardDataset(tmp_path) as dataset:
        (batch,) = ConcurrentDataLoader(dataset, decode={"film": HOW})
        assert batch["film"].shape[:2] == (1, 6)
    assert drop_column(tmp_path, "film").schema == {"label": "int64"}


def test_a_missing_video_is_left_out_or_named(videos: list[bytes], tmp_path: Path) -> None:
    with ShardWriter(tmp_path, columns={"video": "mp4?", "video.clip_index": "json?", "label": "int64"}) as writer:
        for label, video in enumerate([videos[0], None, videos[1]]):
            index = None if video is None else clip_index(video)
            writer.write({"video": video, "video.clip_index": index, "label": label})
    with ShardDataset(tmp_path) as dataset:
        with pytest.raises(DecodeError) as caught:
            list(ConcurrentDataLoader(dataset, 3, decode={"video": HOW}))
        assert (caught.value.column, caught.value.sample) == ("video", 1)
        loader = ConcurrentDataLoader(dataset, 3, decode={"video": HOW}, on_error="skip", max_errors=1)
        (batch,) = loader
        assert batch["label"].tolist() == [0, 2]
        whole = ConcurrentDataLoader(dataset.subset([0, 2]), 2, decode={"video": HOW})
        assert torch.equal(batch["video"][0], next(iter(whole))["video"][0])
        assert loader.stats.num_skipped == 1


def test_raw_objects_of_audio_and_video(media: Any, videos: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(sound := media.audio_file("wav"))
    (tmp_path / "b.mp4").write_bytes(videos[0])
    (tmp_path / "c.txt").write_bytes(b"text")
    with ObjectDataset(tmp_path, column="sound", column_type="audio") as dataset:
        (batch,) = ConcurrentDataLoader(dataset, decode={"sound": Audio()})
        assert batch["key"] == ["a.wav"]
        assert torch.equal(batch["sound"][0], Audio()(sound))
    with ObjectDataset(tmp_path, column="film", column_type="mp4") as dataset:
        (batch,) = ConcurrentDataLoader(dataset, decode={"film": HOW})
        assert batch["key"] == ["b.mp4"]
        assert batch["film"].shape[:2] == (1, 6)


def test_parts_repeat_and_differ_between_epochs(url: str) -> None:
    with ShardDataset(url) as dataset:
        options: dict[str, Any] = {"seed": 3, "decode": {"video": HOW, "sound": Audio(seconds=0.5, sample_rate=8000)}}
        loader = ConcurrentDataLoader(dataset, 2, shuffle=True, **options)
        epochs = [list(loader) for _ in range(2)]
        assert epochs[0][0]["sound"].shape == (2, 1, 4000)
        by_id = [{int(i): c for b in epoch for i, c in zip(b.sample_ids, b["video"], strict=True)} for epoch in epochs]
        assert not all(torch.equal(by_id[0][number], by_id[1][number]) for number in range(4))

        resumed = ConcurrentDataLoader(dataset, 2, shuffle=True, **options)
        next(iterator := iter(resumed))
        state = resumed.state_dict()
        del iterator
        resumed = ConcurrentDataLoader(dataset, 2, shuffle=True, num_threads=3, **options)
        resumed.load_state_dict(state)
        for batch, expected in zip(resumed, epochs[0][1:], strict=True):
            assert torch.equal(batch["video"], expected["video"])
            assert torch.equal(batch["sound"], expected["sound"])

        view = dataset.subset([2, 0]).select_columns(["video"])
        found = next(iter(ConcurrentDataLoader(view, 2, seed=3, decode={"video": HOW})))
        for number, clip in zip((0, 2), found["video"], strict=True):
            assert torch.equal(clip, by_id[0][number])


def test_videos_without_an_index_give_the_same_clips(url: str, videos: list[bytes]) -> None:
    plain = f"memory://{uuid4().hex}"
    with ShardWriter(plain, columns={"video": "video", "label": "int64"}) as writer:
        for label, video in enumerate(videos):
            writer.write({"video": video, "label": label})
    with ShardDataset(url, columns=["video", "label"]) as dataset, ShardDataset(plain) as other:
        expected = clips_of(ConcurrentDataLoader(dataset, 3, decode={"video": HOW}))
        whole = clips_of(ConcurrentDataLoader(other, 3, decode={"video": HOW}))
        mixed = Mixture([dataset, dataset.subset([1])], per="batch", stop="longest")
        in_mixture = clips_of(ConcurrentDataLoader(mixed, 1, decode={"video": HOW}))
    add_column(plain, "video.clip_index", "json", values=[clip_index(video) for video in videos])
    with ShardDataset(plain) as dataset:
        assert dataset.columns == ("video", "label")
        before = dataset.fetch_stats.num_bytes
        joined = clips_of(ConcurrentDataLoader(dataset, 3, decode={"video": HOW}))
        assert dataset.fetch_stats.num_bytes - before < sum(map(len, videos)) / 2
    for label, clip in expected.items():
        for found in (whole, in_mixture, joined):
            assert torch.equal(clip, found[label])


def test_damage_in_a_clip_is_reported_and_elsewhere_not_seen(videos: list[bytes], tmp_path: Any) -> None:
    video = videos[0]
    with ShardWriter(tmp_path, columns={"video": "mp4", "video.clip_index": "json", "label": "int64"}) as writer:
        writer.write({"video": video, "video.clip_index": clip_index(video), "label": 0})
    index = ClipIndex.parse(clip_index(video), len(video))
    (shard,) = (tmp_path / "shards").iterdir()
    sound = shard.read_bytes()
    at = sound.index(video)
    for group, is_seen in ((0, True), (4, False)):
        damaged = bytearray(sound)
        damaged[at + index.span(group, group)[0]] ^= 1
        shard.write_bytes(damaged)
        with ShardDataset(tmp_path) as dataset:
            loader = ConcurrentDataLoader(dataset, 1, decode={"video": Clips(4, start="start")})
            if is_seen:
                with pytest.raises(DatasetChanged) as caught:
                    next(iter(loader))
                assert (caught.value.sample, caught.value.column) == (0, "video")
            else:
                assert next(iter(loader))["video"].shape == (1, 4, 3, 96, 128)


def test_clips_are_read_from_the_cache_again(url: str, served: list[int], tmp_path: Any) -> None:
    for _ in range(2):
        before = sum(served)
        with ShardDataset(url, columns=["video", "label"], cache_dir=tmp_path) as dataset:
            opened = sum(served)
            found = clips_of(ConcurrentDataLoader(dataset, 2, decode={"video": HOW}))
        assert len(found) == 4
    assert before < sum(served)  # the manifest
    assert opened == sum(served)


def test_undecodable_files_follow_the_policy(media: Any, videos: list[bytes]) -> None:
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"sound": "flac", "label": "int64"}) as writer:
        for label in range(4):
            writer.write({"sound": media.audio_file("flac") if label != 2 else b"fLaC" + bytes(50), "label": label})
    with ShardDataset(url) as dataset:
        how = {"sound": Audio(seconds=1)}
        with pytest.raises(DecodeError, match="damaged flac data") as caught:
            list(ConcurrentDataLoader(dataset, 4, decode=how))
        assert (caught.value.sample, caught.value.column) == (2, "sound")
        (batch,) = ConcurrentDataLoader(dataset, 4, decode=how, on_error="skip", max_errors=1)
        assert batch["label"].tolist() == [0, 1, 3]
        (batch,) = ConcurrentDataLoader(dataset, 4, decode=how, on_error="replace", max_errors=1)
        assert batch["label"].tolist() == [0, 1, 1, 3]


def test_audio_of_different_lengths_is_arranged_like_any_ragged_column(media: Any) -> None:
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"sound": "wav"}) as writer:
        for seconds in (0.5, 1.0):
            writer.write({"sound": media.audio_file("wav", seconds)})
    with ShardDataset(url) as dataset:
        (batch,) = ConcurrentDataLoader(dataset, 2, decode={"sound": Audio()})
        assert [sound.shape for sound in batch["sound"]] == [(1, 8000), (1, 16000)]
        (batch,) = ConcurrentDataLoader(dataset, 2, decode={"sound": Audio()}, ragged={"sound": "list"})
        assert len(batch["sound"]) == 2


@pytest.mark.processes
def test_workers_deliver_the_same_parts(videos: list[bytes], tmp_path: Any) -> None:
    columns = {"video": "mp4", "video.clip_index": "json", "label": "int64"}
    with ShardWriter(tmp_path, columns=columns) as writer:
        for label, video in enumerate(videos):
            writer.write({"video": video, "video.clip_index": clip_index(video), "label": label})
    with ShardDataset(tmp_path) as dataset:
        options: dict[str, Any] = {"shuffle": True, "seed": 5, "decode": {"video": HOW}}
        expected = clips_of(ConcurrentDataLoader(dataset, 2, **options))
        found = clips_of(ConcurrentDataLoader(dataset, 2, num_workers=2, **options))
    assert all(torch.equal(expected[label], found[label]) for label in range(4))
