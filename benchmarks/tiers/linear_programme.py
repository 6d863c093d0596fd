"""The shares of paper 004, by a linear programme and rounding (its Algorithm 1), for given roles and cuts; p = 0."""

from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

import numpy as np
from scipy.optimize import linprog

from edge_agent.planning.families.tiers.divisions import Division
from edge_agent.planning.measurements import Floats, Ints

Line = tuple[float, Floats]
"""Seconds, and seconds for each sample of o, s and l."""


def every_division(document: Mapping[str, Any]) -> Iterator[Division]:
    """Yield the division of each order of roles and each m_s <= m_l. document: a decoded profile."""
    names, blocks = [worker["name"] for worker in document["workers"]], len(document["blocks"])
    for roles in permutations(names):
        for short_blocks in range(1, blocks + 1):
            for long_blocks in range(short_blocks, blocks + 1):
                yield division(document, roles, short_blocks, long_blocks)


def division(document: Mapping[str, Any], roles: tuple[str, ...], short_blocks: int, long_blocks: int) -> Division:
    """Return the division for given roles o, s and l, and cuts."""
    phases = [
        *_phases(document, "forward", roles, short_blocks, long_blocks),
        *_phases(document, "backward", roles, short_blocks, long_blocks),
    ]
    rows, limits = [], []
    for number, lines in enumerate(phases):
        for constant, slopes in lines:
            row = np.zeros(3 + len(phases))
            row[:3], row[3 + number] = slopes, -1.0
            rows.append(row)
            limits.append(-constant)
    solved = linprog(
        np.array([0.0] * 3 + [1.0] * len(phases)),
        np.array(rows),
        np.array(limits),
        np.array([[1.0] * 3 + [0.0] * len(phases)]),
        np.array([document["batch_size"]]),
        method="highs",
    )
    original, short_worker, long_worker = roles
    _, short, long = _rounded(solved.x[:3], document["batch_size"]).tolist()
    return Division(
        original, short_worker, long_worker, 0, short_blocks if short else 0, long_blocks if long else 0, short, long
    )


def _phases(
    document: Mapping[str, Any], way: str, roles: tuple[str, ...], short_blocks: int, long_blocks: int
) -> Iterator[list[Line]]:
    """Yield the lines of which the largest counts, of the blocks up to m_s, and from there to m_l."""
    workers = {worker["name"]: worker["by_samples"][way] for worker in document["workers"]}
    device = document["workers"][0]["name"]
    rates: dict[tuple[str, str], float] = {}
    for link in document["links"]:
        near, far = link["between"]
        rates[near, far], rates[far, near] = link["uplink"], link["downlink"]
    original, short, long = roles
    shares = np.eye(3)

    def line(worker: str, first: int, stop: int, share: Floats, sample_seconds: float = 0.0) -> Line:
        blocks = workers[worker][first:stop]
        return sum(one for one, _ in blocks), (sum(each for _, each in blocks) + sample_seconds) * share

    def output(worker: str, cut: int) -> float:
        hop = (worker, original) if way == "forward" else (original, worker)
        return float(8 * document["sample_bytes"][cut] / rates[hop])

    def inputs(worker: str) -> float:
        comes = way == "forward" and worker != device
        return float(8 * document["sample_bytes"][0] / rates[device, worker]) if comes else 0.0

    yield [
        line(original, 0, short_blocks, shares[0], inputs(original)),
        line(short, 0, short_blocks, shares[1], inputs(short) + output(short, short_blocks)),
        line(long, 0, short_blocks, shares[2], inputs(long)),
    ]
    yield [
        line(original, short_blocks, long_blocks, shares[0] + shares[1]),
        line(long, short_blocks, long_blocks, shares[2], output(long, long_blocks)),
    ]


def _rounded(shares: Floats, batch_size: int) -> Ints:
    """Round shares down, and those of the largest fractions up, until the samples are all there."""
    whole: Ints = np.floor(shares + 1e-9).astype(np.int64)
    for index in np.argsort(whole - shares, kind="stable")[: batch_size - whole.sum()]:
        whole[index] += 1
    return whole
