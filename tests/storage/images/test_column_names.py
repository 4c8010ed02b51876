from __future__ import annotations

from concurrent_loader.storage.images.column_names import guess_content


def test_names() -> None:
    names = {
        "mask": (
            "mask",
            "Masks",
            "gt.mask",
            "seg",
            "label_map",
            "gt_label_map",
            "panopticmask",
            "trimap",
            "mask_small",
        ),
        "depth": ("depth", "depth_m"),
        "boxes": ("box", "bbox", "gt-boxes", "bounding_boxes", "bboxes 2d"),
        "keypoints": ("keypoints", "face.landmarks", "polygon"),
        None: ("label", "image", "masked", "boxer", "segment_id", "map", ""),
    }
    for content, every in names.items():
        assert {name: guess_content(name) for name in every} == dict.fromkeys(every, content)
