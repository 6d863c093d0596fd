"""Files of chains for the tests of planning, and every partition of one, costed by the definitions and nothing else."""

import itertools
import random
from collections.abc import Iterator, Sequence

from shared.planning.profile.chain_v1 import SCHEMA


def chain_document(blocks: int, stages: int, seed: int = 0, *, holes: float = 0.0, ties: bool = False) -> dict:
    """Any chain file. holes: share of the seconds that were not measured. ties: numbers of which many sums are equal."""
    draw = random.Random(seed)

    def number(low: float, high: float) -> float:
        return low * draw.randint(1, 3) if ties else draw.uniform(low, high)

    def run_seconds(each: list[float], first: int, stop: int) -> float | None:
        if stop <= first or draw.random() < holes:
            return None
        return sum(each[first:stop]) * (1.0 if ties else draw.uniform(0.8, 1.2))

    def table() -> list[list[float | None]]:
        each = [number(0.0625, 0.5) for _ in range(blocks)]
        return [[run_seconds(each, first, stop) for stop in range(blocks + 1)] for first in range(blocks + 1)]

    def by_cut(entry) -> list:
        return [None, *(entry() for _ in range(blocks - 1)), None]

    return {
        "schema": SCHEMA,
        "model": "any",
        "batch_size": 32,
        "blocks": [{"name": f"b{index}", "bytes": 1000 * index} for index in range(blocks)],
        "feature_bytes": by_cut(lambda: number(65536, 1e6)),
        "gradient_bytes": by_cut(lambda: number(65536, 1e6)),
        "encode": {"seconds": 0.03125, "seconds_per_byte": 2.0**-22},
        "min_bits": by_cut(lambda: draw.choice((2, 4, 8))) if draw.random() < 0.5 else None,
        "stages": [{"name": f"s{index}", "seconds": table()} for index in range(stages)],
        "links": [link_document(number) for _ in range(stages - 1)],
    }


def link_document(number) -> dict:
    return {"uplink": number(2**21, 2e7), "downlink": number(2**21, 2e7), "round_trip_seconds": number(0.015625, 0.1)}


def all_partitions(document: dict, bits: Sequence[int], staleness: int | None) -> Iterator[tuple]:
    """(seconds a step, cuts, bits) of every partition that may be chosen."""
    blocks, stages = len(document["blocks"]), document["stages"]
    for cuts in itertools.combinations(range(1, blocks), len(stages) - 1):
        ends = (0, *cuts, blocks)
        computing = [stage["seconds"][i][j] for stage, i, j in zip(stages, ends, ends[1:], strict=False)]
        if None in computing:
            continue
        hops = [[hop(document, n, cut, width) for width in bits] for n, cut in enumerate(cuts)]
        for chosen in itertools.product(*hops):
            if None in chosen:
                continue
            parts = list(computing)
            for n, (_, encode, up, down) in enumerate(chosen):
                parts[n] += encode
                parts += [up, down]
            seconds = max(parts)
            if staleness is not None:
                travel = sum(link["round_trip_seconds"] for link in document["links"])
                seconds = max(seconds, (sum(parts) + travel) / (staleness + 1))
            yield seconds, cuts, tuple(width for width, *_ in chosen)


def hop(document: dict, link: int, cut: int, width: int) -> tuple | None:
    """(width, encoding, up, down); None where the width may not be."""
    if document["min_bits"] is not None and width < document["min_bits"][cut]:
        return None
    if width < 32 and document["encode"] is None:
        return None
    size, rates = document["feature_bytes"][cut], document["links"][link]
    encode = document["encode"]["seconds"] + document["encode"]["seconds_per_byte"] * size if width < 32 else 0.0
    return (
        width,
        encode,
        size * 8 * width / 32 / rates["uplink"],
        document["gradient_bytes"][cut] * 8 / rates["downlink"],
    )


def best_by_trying(document: dict, bits: Sequence[int], staleness: int | None) -> tuple | None:
    """The same of the best one: of equals the smallest cuts, then the most bits. None where there is none."""
    found = list(all_partitions(document, bits, staleness))
    if not found:
        return None
    least = min(seconds for seconds, _, _ in found)
    equal = [each for each in found if each[0] <= least * (1 + 1e-12)]
    return min(equal, key=lambda each: (each[1], tuple(-width for width in each[2])))
