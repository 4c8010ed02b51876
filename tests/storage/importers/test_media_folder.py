from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from concurrent_loader import ConfigurationError, ShardDataset, ingest
from concurrent_loader.storage import CorruptData
from concurrent_loader.storage.importers import AudioFolder, VideoFolder
from concurrent_loader.storage.media import clip_index

pytestmark = pytest.mark.usefixtures("no_leaks")


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_folders_of_audio_become_classes(media: Any, tmp_path: Path) -> None:
    files = {
        f"class{number % 2}/{number}.{kind}": media.audio_file(kind) for number, kind in enumerate(("wav", "flac"))
    }
    files |= {"class1/deep/2.mp3": media.audio_file("mp3"), "class0/3.ogg": media.audio_file("opus"), "notes.txt": b"x"}
    report = ingest(AudioFolder(write(tmp_path / "in", files)), tmp_path / "out")
    assert report.manifest.schema == {"audio": "audio", "label": "int64", "path": "str"}
    assert report.num_ignored == 1
    with ShardDataset(tmp_path / "out") as dataset:
        assert dataset.metadata["classes"] == {"label": ["class0", "class1"]}
        for sample in dataset[:]:
            assert sample["audio"] == files[sample["path"]]
            assert sample["label"] == int(sample["path"][5])


def test_videos_get_their_index(media: Any, tmp_path: Path) -> None:
    files = {"a.mp4": media.video_file(), "b/c.mp4": media.video_file(num_frames=24)}
    report = ingest(VideoFolder(write(tmp_path / "in", files)), tmp_path / "out")
    assert report.manifest.schema == {"video": "mp4", "video.clip_index": "json", "path": "str"}  # a.mp4 has no class
    with ShardDataset(tmp_path / "out") as dataset:
        indexes = dataset.column("video.clip_index")
        assert indexes == [clip_index(files[path]) for path in dataset.column("path")]


def test_columns_can_be_chosen(media: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"a/1.wav": media.audio_file("wav")})
    importer = AudioFolder(source, columns={"audio": "audio"}, drop=["label", "path"])
    assert ingest(importer, tmp_path / "out").manifest.schema == {"audio": "audio"}
    with pytest.raises(ConfigurationError, match="no such field"):
        ingest(AudioFolder(source, drop=["speaker"]), tmp_path / "other")
    assert ingest(AudioFolder(source, columns={"audio": "wav"}), tmp_path / "wav").manifest.schema["audio"] == "wav"


def test_damaged_files_are_reported(media: Any, tmp_path: Path) -> None:
    broken = {"1.wav": b"RIFF\0\0\0\0WAVE", "2.flac": b"fLaC" + bytes(99), "3.mp3": media.audio_file("wav")}
    source = write(tmp_path / "in", {**broken, "4.wav": media.audio_file("wav")})
    with pytest.raises(CorruptData):
        ingest(AudioFolder(source), tmp_path / "out")
    report = ingest(AudioFolder(source, columns={"audio": "audio"}), tmp_path / "out", on_error="skip")
    # 3.mp3 is a WAV file by another name, which a column of type audio accepts.
    assert report.num_samples == 2
    assert {problem.name for problem in report.skipped} == {"1.wav", "2.flac"}
    videos = write(tmp_path / "videos", {"1.mp4": media.video_file()[:300], "2.webm": media.video_file("webm")})
    report = ingest(VideoFolder(videos), tmp_path / "clips", on_error="skip")
    assert [problem.name for problem in report.skipped] == ["1.mp4"]


def test_the_same_folder_is_added_once(media: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "in", {"a/1.wav": media.audio_file("wav")})
    ingest(AudioFolder(source), tmp_path / "out")
    assert ingest(AudioFolder(source), tmp_path / "out", append=True).repeats
    write(source, {"b/2.flac": media.audio_file("flac")})
    with pytest.raises(CorruptData, match="wav"):
        ingest(AudioFolder(source), tmp_path / "out", append=True)  # the column holds wav only
