"""The authors' own measured tables (paper 000, Fig. 10, Fig. 11 and Table 3) as profiles of ours.

Their tables: seconds per step of batch 32 by cut for a Raspberry Pi 4, a Jetson TX2 and a 2080Ti (`runtime_*.csv`), feature
sizes in MiB (`featuresize.csv`) and seconds to encode a feature on each device (`compresstime*.csv`). Run times are public for
VGG19 and Chair only. What their tables lack is filled in here and said so: block sizes, and the K and bits of their accuracies.
"""

import csv
import itertools
from pathlib import Path

import numpy as np

from edge_agent.planning import Linear, Profile, ProfiledBlock, pair_profile

MIB = 1024 * 1024
DEVICES = {"Pi": "compresstimepi.csv", "TX2": "compresstimetx2.csv"}
BATCH_SIZE = 32
MAX_STALENESS = 5
"""K of their accuracy table (Table 4)."""
MIN_BITS = 8
"""Width of their accuracy table."""

# VGG19 with batch norm at 32 x 32: 16 convolutions of 3 x 3 (a pool at the end of each stage), 3 linear layers.
_VGG19_CHANNELS = [3, *[64] * 2, *[128] * 2, *[256] * 4, *[512] * 8]
_VGG19_LINEAR = [512, 4096, 4096, 10]
_FLOAT_BYTES = 4


def vgg19_profile(folder: Path, device: str) -> Profile:
    """VGG19 on CIFAR-10; row i of the run times has blocks 0..i on the edge, the last is edge-only."""
    rows = _columns(folder / "runtime_VGG19.csv")
    features = _columns(folder / "featuresize.csv")["VGG19"]
    feature_bytes = [None, *(size * MIB for size in features), None]
    return pair_profile(
        model="VGG19",
        batch_size=BATCH_SIZE,
        blocks=_vgg19_blocks(),
        feature_bytes=tuple(feature_bytes),
        gradient_bytes=tuple(feature_bytes),
        edge_seconds=(None, *rows[device]),
        cloud_seconds=(None, *rows["Cloud"]),
        encode=_encode_fit(features, _columns(folder / DEVICES[device])["VGG19"]),
        min_bits=(MIN_BITS,) * (len(features) + 2),
        max_staleness=MAX_STALENESS,
    )


def chair_profile(folder: Path, device: str) -> Profile:
    """The generator Chair, whose roles are inverted: row i of the run times has i blocks in the cloud, the first is edge-only.

    Read backwards, its top on the edge is our cut: the error gradient goes up and the feature comes down, both of one size. Its
    block sizes are nowhere to be had and stand as 0, so this profile says nothing of migrations.
    """
    rows = _columns(folder / "runtime_chair.csv")
    blocks = len(rows[device])
    features = _columns(folder / "featuresize.csv")["Chair"][: blocks - 1]
    crossing_bytes = (None, *(size * MIB for size in reversed(features)), None)
    return pair_profile(
        model="Chair",
        batch_size=BATCH_SIZE,
        blocks=tuple(ProfiledBlock(f"block{index}", 0) for index in range(blocks)),
        feature_bytes=crossing_bytes,
        gradient_bytes=crossing_bytes,
        edge_seconds=(None, *reversed(rows[device])),
        cloud_seconds=(None, *reversed(rows["Cloud"])),
        encode=_encode_fit(features, _columns(folder / DEVICES[device])["Chair"]),
        min_bits=(MIN_BITS,) * (blocks + 1),
        max_staleness=MAX_STALENESS,
    )


def _columns(path: Path) -> dict[str, list[float]]:
    """A table's columns by name; some are shorter than others, and end at their first blank."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if (row[name] or "").strip()] for name in rows[0]}


def _encode_fit(sizes_mib: list[float], seconds: list[float]) -> Linear:
    """Least squares of seconds over bytes, through the origin when the line would start below it."""
    sizes = np.array(sizes_mib) * MIB
    measured = np.array(seconds[: len(sizes)])
    slope, intercept = np.polyfit(sizes, measured, 1)
    if intercept < 0:
        slope, intercept = sizes @ measured / (sizes @ sizes), 0.0
    return Linear(float(intercept), float(slope))


def _vgg19_blocks() -> tuple[ProfiledBlock, ...]:
    """Each block's float32 parameters, their momentum (SGD, Table 2) and its batch-norm statistics."""
    blocks = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(_VGG19_CHANNELS)):
        parameters = 9 * inputs * outputs + outputs + 2 * outputs
        blocks.append(ProfiledBlock(f"conv{index + 1}", (2 * parameters + 2 * outputs) * _FLOAT_BYTES))
    for index, (inputs, outputs) in enumerate(itertools.pairwise(_VGG19_LINEAR)):
        blocks.append(ProfiledBlock(f"linear{index + 1}", 2 * (inputs * outputs + outputs) * _FLOAT_BYTES))
    return tuple(blocks)
