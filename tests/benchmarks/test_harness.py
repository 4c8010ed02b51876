from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from benchmarks.harness import CommandError, Request, run_command, run_epoch
from benchmarks.photos import PhotoFolder, make_photos

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> PhotoFolder:
    return make_photos(tmp_path_factory.mktemp("photos"), count=40)


def test_an_epoch_of_the_folder_delivers_every_file_once(photos: PhotoFolder) -> None:
    seen: list[int] = []

    epochs = [
        run_epoch(
            Request(
                side="folder",
                step="raw",
                location=str(photos.root),
                num_classes=10,
                num_workers=num_workers,
                batch_size=16,
                seed=num_workers,
            ),
            on_progress=seen.append,
        )
        for num_workers in (0, 2)
    ]

    for epoch in epochs:
        assert epoch.num_samples == 40
        assert epoch.class_counts == [4] * 10
        assert 0 < epoch.first_batch_s <= epoch.epoch_s
        assert 0 < epoch.waiting_share <= 1
        assert epoch.cpu_s > 0
        assert epoch.peak_rss_mb > epoch.rss_added_mb
        assert [done for _, done in epoch.timeline] == [16, 32, 40, 40]
        assert (epoch.num_gets, epoch.num_bytes, epoch.client, epoch.accuracy) == (0, 0, None, None)
    assert epochs[0].digest == epochs[1].digest
    assert all(0 < done <= 40 for done in seen)


def test_a_side_that_fails_says_why(tmp_path: Path) -> None:
    request = Request(side="folder", step="raw", location=str(tmp_path / "nowhere"), num_classes=10)
    with pytest.raises(CommandError, match=r"(?s)'folder'.*status 1.*FileNotFoundError"):
        run_epoch(request)


def test_a_command_that_fails_says_so() -> None:
    run_command([sys.executable, "-c", "import os, sys; sys.exit(os.environ['X'] != '1')"], env={"X": "1"})
    with pytest.raises(CommandError, match="status 3"):
        run_command([sys.executable, "-c", "raise SystemExit(3)"], env={})


def test_a_side_keeps_compiled_modules_whatever_this_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "some_module.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_command([sys.executable, "-c", "import some_module"], env={})
    assert len(list((tmp_path / "__pycache__").iterdir())) == 1


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_one_that_asked(photos: PhotoFolder, ending: signal.Signals) -> None:
    script = textwrap.dedent("""
        import sys
        from benchmarks.harness import Request, run_epoch
        request = Request(side="folder", step="decoded", location=sys.argv[1], num_classes=10, batch_size=1)
        while True:
            run_epoch(request, on_progress=lambda done: print(done, flush=True))
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(photos.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as asker:
        assert asker.stdout is not None
        while not (children := psutil.Process(asker.pid).children(recursive=True)):
            assert asker.poll() is None
        if ending is signal.SIGINT:
            asker.stdout.readline()  # workers are there
            children = psutil.Process(asker.pid).children(recursive=True)
        asker.send_signal(ending)
        asker.wait(20)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert alive == []
