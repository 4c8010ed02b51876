"""What the forerunners say of themselves, each figure with its source, and in what our set-up differs from theirs."""

from __future__ import annotations

from dataclasses import dataclass

_CONCURRENT = "Svogor et al., arXiv 2211.04908"
_ZOLNOURI = "Zolnouri et al., arXiv 2005.02130"
_L3 = "Bae et al., L3, ECCV 2022, arXiv 2208.08711"
_DATADINGS = "datadings.readthedocs.io, 'Fast, you say?'"

NAMES = {
    "concurrent_dataloader": "ConcurrentDataloader",
    "datadings": "datadings (EDeL)",
    "zolnouri": "Zolnouri et al.",
    "l3": "L3",
}


@dataclass(frozen=True, slots=True)
class Published:
    """A figure of a forerunner's."""

    forerunner: str  # A key of `NAMES`
    key: str  # names the figure that ours is set beside; see `benchmarks.forerunners_figures.compared`
    what: str  # in words
    figure: str  # as published
    source: str  # where


PUBLISHED: tuple[Published, ...] = (
    Published(
        "concurrent_dataloader", "batch_load", "median time to load a batch from S3, vanilla ÷ the loader",
        "30.5 s ÷ 2.3–2.6 s = 11.6–13.4×", _CONCURRENT,
    ),
    Published(
        "concurrent_dataloader", "samples_s", "images/s from S3: vanilla, asyncio, threaded",
        "32–35, 333, 363", _CONCURRENT,
    ),
    Published(
        "concurrent_dataloader", "of_vanilla_local", "the loader from S3 ÷ vanilla from the local drive",
        "67%", _CONCURRENT,
    ),
    Published(
        "concurrent_dataloader", "of_own_local", "the loader from S3 ÷ the loader from the local drive",
        "43%", _CONCURRENT,
    ),
    Published(
        "concurrent_dataloader", "of_in_flight", "requests a second ÷ (requests in flight ÷ latency)",
        "74%", _CONCURRENT,
    ),
    Published(
        "datadings", "sequential", "samples/s in order: a folder of files, their format", "500, 20,000", _DATADINGS
    ),
    Published("datadings", "first_sample", "seconds to the first sample: folder, format", "7, 0.7", _DATADINGS),
    Published("zolnouri", "reader", "epoch time with a binary reader instead of files", "−28%", _ZOLNOURI),
    Published("zolnouri", "device", "epoch time with that and augmentation on the GPU", "−40%", _ZOLNOURI),
    Published("l3", "decoding", "data preparation, lossless format ÷ PNG", "9.29×", _L3),
    Published("l3", "training", "training end to end, lossless format ÷ PNG", "1.71×", _L3),
)  # fmt: skip

DIFFERENCES: dict[str, tuple[str, ...]] = {
    "concurrent_dataloader": (
        "Their store is AWS S3 over a network; ours is MinIO on the same machine, far away by toxiproxy.",
        "Server and proxy share the processors with all sides here.",
        "They had 4 worker processes × 16 fetchers and a GPU; we have 2 workers and the cores named above, no GPU.",
        "They train ResNet-18 on ImageNet's images of 115 KB; we a network of four layers on the photographs above.",
        "Vanilla is torch's own loader on both sides; ours reads a part of the images from S3.",
        "A batch's load is from its first item begun to its last one there, as they timed it.",
        "In our ObjectDataset and shards no item has a beginning: they are compared by the time between two batches.",
        "Their asyncio is a blocking client in a thread pool; our coroutines are obstore's.",
        "An epoch of ours includes the start of the loader and of its workers.",
    ),
    "datadings": (
        "They read ImageNet, 1.3 million files, from drives; we the photographs above, from the page cache.",
        "So the folder is far faster here than there, and its first sample sooner.",
        "Their format has no digests; each of our samples is checked against its own as it is read.",
    ),
    "zolnouri": (
        "Their reader is of a binary format and their device NVIDIA DALI on a GPU; ours are unified shards.",
        "Where there is no GPU, the device is torch's threads in the training process.",
        "Images, network and augmentations are others: benchmarks/pipelines.py says which.",
    ),
    "l3": (
        "They prepare Cityscapes on an A100 and decode on the GPU.",
        "Without a GPU ours is of one core, against the fastest PNG decoder there, in processor time.",
        "Our images are ten photographs and mosaics of them.",
    ),
}
