"""Profiles of three tiers for the tests of planning."""

import random

from edge_agent.planning.profile import SCHEMA

NAMES = ("edge", "near", "gpu")


def tiers_document(blocks: int, batch_size: int, seed: int = 0, *, codecs: bool = False) -> dict:
    """Any file of three tiers: the device is the slowest worker, and links differ by up to ten times."""
    draw = random.Random(seed)

    def line(low: float, high: float) -> list[float]:
        return [draw.choice((0.0, draw.uniform(low, high))), draw.uniform(low, high)]

    def worker(name: str, slowness: float) -> dict:
        return {
            "name": name,
            "by_samples": {
                "forward": [line(0.001 * slowness, 0.01 * slowness) for _ in range(blocks)],
                "backward": [line(0.002 * slowness, 0.02 * slowness) for _ in range(blocks)],
                "update": [draw.uniform(0.0, 0.002 * slowness) for _ in range(blocks)],
            },
        }

    def link(near: str, far: str) -> dict:
        return {
            "between": [near, far],
            "uplink": draw.uniform(1e6, 1e7),
            "downlink": draw.uniform(1e6, 1e7),
            "round_trip_seconds": draw.choice((0.0, draw.uniform(0.001, 0.02))),
        }

    def block(index: int) -> dict:
        size = draw.uniform(1e2, 2e4)
        return {
            "name": f"b{index}",
            "bytes": size,
            "parameter_bytes": size,
            "min_samples": draw.choice((1, 1, 2)),
            "reads_raw": index == 0,
        }

    edge, near, gpu = NAMES
    input_bytes = draw.uniform(1e3, 1e4)
    document = {
        "schema": SCHEMA,
        "model": "any",
        "batch_size": batch_size,
        "label_bytes": 8,
        "blocks": [block(index) for index in range(blocks)],
        "sample_bytes": [input_bytes, *[draw.uniform(5e2, 1e4) for _ in range(blocks + 1)][1:]],
        "workers": [
            worker(edge, draw.uniform(1, 4)),
            worker(near, draw.uniform(0.5, 2)),
            worker(gpu, draw.uniform(0.1, 1)),
        ],
        "links": [link(edge, near), link(near, gpu), link(edge, gpu)],
        "shared_segments": draw.choice(([], [[0, 2]], [[1, 2]])),
    }
    message = draw.choice(([0.0, 0.0], [0.001, 1e-9]))
    for one in document["workers"]:
        one["by_samples"]["message"] = message
    if codecs:
        document["codecs"] = {"uniform8": {"bits": 8, "encode": [1e-4, 1e-9], "decode": [1e-4, 1e-9]}}
    return document
