"""Files of chains for the tests of planning, and every partition of one, costed by the definitions and nothing else."""

import itertools
import random
from collections.abc import Iterator, Sequence

from edge_agent.planning.profile import SCHEMA


def chain_document(blocks: int, stages: int, seed: int = 0, *, holes: float = 0.0, ties: bool = False) -> dict:
    """Any chain file. holes: share of the seconds that were not measured. ties: numbers of which many sums are equal."""
    draw = random.Random(seed)

    def number(low: float, high: float) -> float:
        return low * draw.randint(1, 3) if ties else draw.uniform(low, high)

    def runs() -> list[list[float]]:
        each = [number(0.0625, 0.5) for _ in range(blocks)]
        return [
            [first, stop, sum(each[first:stop]) * (1.0 if ties else draw.uniform(0.8, 1.2))]
            for first, stop in itertools.combinations(range(blocks + 1), 2)
            if draw.random() >= holes
        ]

    def by_cut(entry) -> list:
        return [None, *(entry() for _ in range(blocks - 1)), None]

    names = [f"s{index}" for index in range(stages)]
    return {
        "schema": SCHEMA,
        "model": "any",
        "batch_size": 32,
        "blocks": [{"name": f"b{index}", "bytes": 1000 * index} for index in range(blocks)],
        "feature_bytes": by_cut(lambda: number(65536, 1e6)),
        "gradient_bytes": by_cut(lambda: number(65536, 1e6)),
        "encode": [0.03125, 2.0**-22],
        "min_bits": by_cut(lambda: draw.choice((2, 4, 8))) if draw.random() < 0.5 else None,
        "workers": [{"name": name, "replayed": runs()} for name in names],
        "links": along(names, [link_document(number) for _ in names[1:]]),
        "links_stay": True,
    }


def link_document(number) -> dict:
    return {"uplink": number(2**21, 2e7), "downlink": number(2**21, 2e7), "round_trip_seconds": number(0.015625, 0.1)}


def along(names: Sequence[str], links: Sequence[dict]) -> list[dict]:
    """Return the links as those between neighbours."""
    return [link | {"between": list(hop)} for hop, link in zip(itertools.pairwise(names), links, strict=True)]


def seconds_of(worker: dict) -> dict[tuple[int, int], float]:
    """Return the seconds of each run of blocks that was measured."""
    return {(first, stop): seconds for first, stop, seconds in worker["replayed"]}


def all_layouts(document: dict, bits: Sequence[int], staleness: int | None) -> Iterator[tuple]:
    """(seconds a step, path, bits) of every layout that may be chosen; path: (blocks before it, its place) of each worker but
    the first."""
    blocks, stages = len(document["blocks"]), [seconds_of(worker) for worker in document["workers"]]
    for count in range(len(stages)):
        for places in itertools.combinations(range(1, len(stages)), count):
            links = [passed(document, *ends) for ends in itertools.pairwise((0, *places))]
            for cuts in itertools.combinations(range(1, blocks), count):
                ends = (0, *cuts, blocks)
                runs = zip((0, *places), ends, ends[1:], strict=False)
                computing = [stages[place].get((i, j)) for place, i, j in runs]
                if None in computing:
                    continue
                hops = [
                    [hop(document, link, cut, width) for width in bits] for link, cut in zip(links, cuts, strict=True)
                ]
                for chosen in itertools.product(*hops):
                    if None in chosen:
                        continue
                    parts = list(computing)
                    for n, (_, encode, up, down) in enumerate(chosen):
                        parts[n] += encode
                        parts += [up, down]
                    seconds = max(parts)
                    if staleness is not None:
                        travel = sum(link["round_trip_seconds"] for link in links)
                        seconds = max(seconds, (sum(parts) + travel) / (staleness + 1))
                    path = tuple(zip(cuts, places, strict=True))
                    yield seconds, path, tuple(width for width, *_ in chosen)


def passed(document: dict, near: int, far: int) -> dict:
    """Describe the link between two stages: a known one, or the path through those between them."""
    names = [worker["name"] for worker in document["workers"]]
    if (known := link_between(document["links"], names[near], names[far])) is not None:
        return known
    links = [link_between(document["links"], *hop) for hop in itertools.pairwise(names[near : far + 1])]
    return {
        "uplink": min(link["uplink"] for link in links),
        "downlink": min(link["downlink"] for link in links),
        "round_trip_seconds": sum(link["round_trip_seconds"] for link in links),
    }


def link_between(links: Sequence[dict], near: str, far: str) -> dict | None:
    """Return the link between two workers, up from the first; None if it is unknown."""
    for link in links:
        if link["between"] == [near, far]:
            return link
        if link["between"] == [far, near]:
            return link | {"uplink": link["downlink"], "downlink": link["uplink"], "between": [near, far]}
    return None


def hop(document: dict, link: dict, cut: int, width: int) -> tuple | None:
    """(width, encoding, up, down); None where the width may not be."""
    if document["min_bits"] is not None and width < document["min_bits"][cut]:
        return None
    if width < 32 and document["encode"] is None:
        return None
    size = document["feature_bytes"][cut]
    encode = document["encode"][0] + document["encode"][1] * size if width < 32 else 0.0
    return (
        width,
        encode,
        size * 8 * width / 32 / link["uplink"],
        document["gradient_bytes"][cut] * 8 / link["downlink"],
    )


def best_by_trying(document: dict, bits: Sequence[int], staleness: int | None) -> tuple | None:
    """Return the seconds, workers, cuts and bits of the best. Of equals: the one that ends with the nearest worker, then the
    smallest first cut and the nearest worker after it, and so on, then the most bits. None where there is none."""
    found = list(all_layouts(document, bits, staleness))
    if not found:
        return None
    least = min(seconds for seconds, _, _ in found)
    equal = [each for each in found if each[0] <= least * (1 + 1e-12)]
    seconds, path, widths = min(equal, key=lambda each: (each[1], tuple(-width for width in each[2])))
    names = [worker["name"] for worker in document["workers"]]
    workers = (names[0], *(names[place] for _, place in path))
    return seconds, workers, tuple(cut for cut, _ in path), widths
