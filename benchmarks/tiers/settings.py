"""The settings of devices and links in which blocks sleep, and the profile of the sleeping model in each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge_agent.planning import Profile, parse_profile
from edge_agent.planning.profile import SCHEMA
from shared.bounds import SAMPLES_AHEAD

NAMES = ("edge", "near", "gpu")
BATCH, BLOCKS = 32, 5
FEATURE_BYTES = (12288, 16384, 8192, 4096, 2048, 40)
WEIGHT_BYTES = (10_000, 40_000, 100_000, 200_000, 400_000)
BLOCK_SECONDS, BACKWARD = 0.001, 2.0
"""Seconds of a forward beside its samples, and of a backward for each second of a forward."""
TRIPS = (0.004, 0.03)
"""Seconds there and back on the two links."""
MESSAGE_SECONDS = 0.0015


@dataclass(frozen=True)
class Setting:
    """The machines of a case."""

    what: str
    sample_seconds: tuple[float, float, float]
    """Seconds of a sample's forward through a block, by worker."""
    near_mbit: float
    far_mbit: float
    inputs_to: tuple[str, ...] = NAMES[1:]

    def profile(self) -> Profile:
        """Return the profile of the sleeping model there."""
        return profile_of(self.sample_seconds, self.near_mbit, self.far_mbit)


SETTINGS: Mapping[str, Setting] = {
    "alike": Setting("all alike, quick links", (0.002, 0.002, 0.002), 80.0, 40.0),
    "stay": Setting("4 : 6 : 8, quick links, inputs stay", (0.0025, 0.00167, 0.00125), 80.0, 40.0, ()),
    "shares": Setting("4 : 6 : 8, quick links", (0.0025, 0.00167, 0.00125), 80.0, 40.0),
    "cloud": Setting("1 : 3 : 9, slow links", (0.0025, 0.0008, 0.00028), 40.0, 10.0),
    "slow": Setting("4 : 6 : 8, slow far link", (0.0025, 0.00167, 0.00125), 40.0, 4.0),
}


def profile_of(
    sample_seconds: Sequence[float],
    near_mbit: float,
    far_mbit: float,
    feature_bytes: Sequence[float] = FEATURE_BYTES,
    weight_bytes: Sequence[float] = WEIGHT_BYTES,
    trips: tuple[float, float] = TRIPS,
) -> Profile:
    """Return the profile of the sleeping model."""
    document = profile_document(sample_seconds, near_mbit, far_mbit, feature_bytes, weight_bytes, trips)
    return replace(parse_profile(document, "sleeping"), samples_ahead=SAMPLES_AHEAD)


def profile_document(
    sample_seconds: Sequence[float],
    near_mbit: float,
    far_mbit: float,
    feature_bytes: Sequence[float] = FEATURE_BYTES,
    weight_bytes: Sequence[float] = WEIGHT_BYTES,
    trips: tuple[float, float] = TRIPS,
) -> dict[str, Any]:
    """Return the same as a file has it."""
    count, through = len(weight_bytes), min(near_mbit, far_mbit)
    return {
        "schema": SCHEMA,
        "model": "sleeping",
        "batch_size": BATCH,
        "label_bytes": 1,
        "blocks": [
            {"name": f"b{index}", "bytes": size, "parameter_bytes": size, "reads_raw": index == 0}
            for index, size in enumerate(weight_bytes)
        ],
        "sample_bytes": list(feature_bytes),
        "workers": [
            {
                "name": name,
                "by_samples": {
                    "forward": [[BLOCK_SECONDS, each]] * count,
                    "backward": [[BACKWARD * BLOCK_SECONDS, BACKWARD * each]] * count,
                    "update": [0.0] * count,
                    "message": [MESSAGE_SECONDS, 0.0],
                },
            }
            for name, each in zip(NAMES, sample_seconds, strict=True)
        ],
        "links": [
            _link(NAMES[0], NAMES[1], near_mbit, trips[0]),
            _link(NAMES[1], NAMES[2], far_mbit, trips[1]),
            _link(NAMES[0], NAMES[2], through, sum(trips)),
        ],
        "shared_segments": [[0, 2], [1, 2]],
    }


def _link(near: str, far: str, mbit: float, trip_seconds: float) -> dict[str, Any]:
    return {"between": [near, far], "uplink": mbit * 1e6, "downlink": mbit * 1e6, "round_trip_seconds": trip_seconds}
