"""The cost of a step on a chain: arrays of the costs of every cut and width, and the cost of one partition.

A partition cuts the L blocks into N runs, one a stage, and gives the bits of a number on each link. Its step costs
max(T_max, (T_sum + round trips) / (K + 1)), as everywhere in planning. T are the seconds of the stages, with their
encoding, and of each direction of each link.
"""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shared.errors import PlanError
from shared.planning.cost import steady_seconds
from shared.planning.measurements import FLOAT32_BITS, Floats
from shared.planning.profile import Profile
from shared.planning.space import check_widths


@dataclass(frozen=True)
class Partition:
    """The blocks of each stage, and the bits in which features go up."""

    cuts: tuple[int, ...]
    """Blocks before each stage but the first, rising: N - 1 of them."""
    bits: tuple[int, ...]
    """Width of the features on each link. 32 sends them as they are."""

    def __str__(self) -> str:
        if not self.cuts:
            return "all blocks on one stage"
        return f"cuts {', '.join(map(str, self.cuts))}, bits {', '.join(map(str, self.bits))}"


@dataclass(frozen=True)
class PartitionCost:
    """The cost of a step of one partition."""

    stage_seconds: tuple[float, ...]
    """T of each stage, with the encoding of the features that it sends up."""
    link_seconds: tuple[tuple[float, float], ...]
    """T of each link, up and down."""
    round_trip_seconds: float
    """Sum over all links. It keeps no worker or link busy."""

    def longest(self) -> float:
        """Return T_max."""
        return max(self._parts())

    def total(self) -> float:
        """Return T_sum and the round trips."""
        return sum(self._parts()) + self.round_trip_seconds

    def seconds_per_step(self, staleness: int | None) -> float:
        """Return the seconds of a step with a full pipeline. staleness: K; None takes it large enough that T_max alone
        counts."""
        return self.longest() if staleness is None else float(steady_seconds(self.longest(), self.total(), staleness))

    def _parts(self) -> Iterator[float]:
        yield from self.stage_seconds
        for both in self.link_seconds:
            yield from both


class ChainCosts:
    """The seconds of all parts of a chain's partitions; infinite for forbidden and impossible ones.

    Arrays by cut have L + 1 entries; by width, W: from many bits to few.
    """

    def __init__(self, chain: Profile, bits: Sequence[int]) -> None:
        """bits: widths to consider. The chain's min_bits bounds them from below at each cut. PlanError for an invalid width."""
        check_widths(bits)
        self.blocks = len(chain)
        self.widths = tuple(sorted(set(bits), reverse=True))
        cuts = self.blocks + 1
        no_run = np.tri(cuts, dtype=np.bool_)
        self.stages: Floats = np.array(
            [np.where(no_run, math.inf, _known(worker.replayed)) for worker in chain.workers]
        )
        """Seconds of stage n on the blocks [i, j), at [n, i, j]. Shape (N, L + 1, L + 1)."""
        feature_bytes, gradient_bytes = (
            np.array(sizes, dtype=np.float64) for sizes in (chain.feature_bytes, chain.gradient_bytes)
        )
        self.encode: Floats = self._encode(chain, feature_bytes)
        """Seconds that the sender of a feature encodes it, by cut and width. Shape (L + 1, W)."""
        shares = np.array(self.widths) * 8 / FLOAT32_BITS
        feature_bits = _known(np.multiply.outer(feature_bytes, shares))
        links = [chain.rates(*hop) for hop in pairwise(chain.names)]
        self.uplink: Floats = np.array([feature_bits / link.uplink for link in links])
        """Seconds of a feature on link n, by cut and width. Shape (N - 1, L + 1, W)."""
        self.downlink: Floats = np.array([_known(gradient_bytes * 8) / link.downlink for link in links])
        """Seconds of an error gradient on link n, by cut. Shape (N - 1, L + 1)."""
        self.round_trips: tuple[float, ...] = tuple(link.round_trip_seconds for link in links)

    @property
    def links(self) -> int:
        """Return N - 1, the number of links."""
        return len(self.round_trips)

    def rows(self, stage: int) -> Floats:
        """Return a stage's rows of `stages`: one for each block that it can begin with, which is 0 for the first. Shape
        (1 or L + 1, L + 1)."""
        return self.stages[stage] if stage else self.stages[stage, :1]

    def _encode(self, chain: Profile, feature_bytes: Floats) -> Floats:
        narrow = np.array(self.widths) < FLOAT32_BITS
        seconds = np.full(self.blocks + 1, math.inf)
        if chain.encode is not None:
            seconds = _known(chain.encode.seconds_per_byte * feature_bytes + chain.encode.seconds)
        encode = np.where(narrow, seconds[:, np.newaxis], 0.0)
        if chain.min_bits is not None:
            fewest = np.array(chain.min_bits, dtype=np.float64)[:, np.newaxis]
            encode = np.where(np.array(self.widths) >= fewest, encode, math.inf)
        return encode

    def at(self, cuts: tuple[int, ...]) -> "ChainCosts":
        """Restrict the costs to these cuts. PlanError for cuts that do not rise from 1 to L - 1, one a link."""
        ends = (0, *cuts, self.blocks)
        if len(cuts) != self.links or any(stop <= first for first, stop in pairwise(ends)):
            raise PlanError(
                f"the cuts are {', '.join(map(str, cuts))}; with {self.blocks} blocks on {self.links + 1} stages there must be "
                f"{self.links}, rising, from 1 to {self.blocks - 1}"
            )
        only = copy(self)
        only.stages = np.full_like(self.stages, math.inf)
        for stage, run in enumerate(pairwise(ends)):
            only.stages[(stage, *run)] = self.stages[(stage, *run)]
        return only

    def only(self, bits: Sequence[int]) -> "ChainCosts":
        """Restrict the costs to these widths."""
        narrowed = copy(self)
        narrowed.encode = np.where(np.isin(self.widths, bits), self.encode, math.inf)
        return narrowed

    def of(self, partition: Partition) -> PartitionCost:
        """Return the cost of one partition, its bits among the widths. Infinite if it is forbidden or was not measured."""
        ends = pairwise((0, *partition.cuts, self.blocks))
        stages = [float(self.stages[stage, first, stop]) for stage, (first, stop) in enumerate(ends)]
        links = []
        for link, (cut, bits) in enumerate(zip(partition.cuts, partition.bits, strict=True)):
            width = self.widths.index(bits)
            stages[link] += float(self.encode[cut, width])
            links.append((float(self.uplink[link, cut, width]), float(self.downlink[link, cut])))
        return PartitionCost(tuple(stages), tuple(links), sum(self.round_trips))


def _known(numbers: Floats) -> Floats:
    """Replace unknown seconds by infinite ones, so that no search chooses them."""
    return np.where(np.isnan(numbers), math.inf, numbers)
