"""Runs of a chain under its engine, a second after another, as the cost model says: devices and links as tests set them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from itertools import combinations, pairwise

import numpy as np

from edge_agent.planning import (
    SCHEMA,
    Decision,
    Engine,
    EngineConfig,
    Layout,
    MeasuredLink,
    Observation,
    Plan,
    Profile,
    Question,
    Rates,
    SearchSpace,
    best,
    conditions_of,
    loads_of,
    parse_profile,
    stacked,
)
from tests.support.planning.chains import along

BITS = (8, 32)


def uniform_chain(stages: int = 3, blocks: int = 12, mbit: float = 40.0, block_seconds: float = 0.05) -> Profile:
    """Blocks that take as long on each stage as on any other, and links that carry a feature in 0.02 s at 32 bits."""
    names = [f"s{index}" for index in range(stages)]
    runs = [[first, stop, block_seconds * (stop - first)] for first, stop in combinations(range(blocks + 1), 2)]
    link = {"uplink": mbit * 1e6, "downlink": mbit * 1e6, "round_trip_seconds": 0.01}
    return parse_profile(
        {
            "schema": SCHEMA,
            "model": "uniform",
            "batch_size": 8,
            "blocks": [{"name": f"b{index}", "bytes": 200_000} for index in range(blocks)],
            "feature_bytes": [100_000.0] * (blocks + 1),
            "gradient_bytes": [100_000.0] * (blocks + 1),
            "encode": [0.001, 0.0],
            "workers": [{"name": name, "replayed": runs} for name in names],
            "links": along(names, [link] * (stages - 1)),
            "links_stay": True,
        },
        "uniform",
    )


def hops(chain: Profile) -> list[Rates]:
    """The links between neighbours."""
    return [chain.rates(*hop) for hop in pairwise(chain.names)]


def linked(chain: Profile, rates: Sequence[Rates]) -> Profile:
    """The same chain over other links between its neighbours."""
    return chain.with_links(
        {hop: MeasuredLink(*astuple(link)) for hop, link in zip(pairwise(chain.names), rates, strict=True)}
    )


def plan_chain(chain: Profile, bits: Sequence[int], staleness: int | None = None, *, alone: bool = True) -> Plan:
    """Find the best layout over links as they were measured. alone: whether the first worker may run all blocks."""
    return best(Question(chain, SearchSpace(tuple(bits), staleness, allow_edge_only=alone)))


class ChainTraining:
    """A run whose devices take `slowness` times what was measured, over links of `rates`."""

    def __init__(
        self,
        chain: Profile,
        staleness: int = 4,
        total_steps: float = 100_000,
        start: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        self.chain, self.staleness = chain, staleness
        layout = stacked(chain, start[0], staleness, start[1]) if start else plan_chain(chain, BITS, staleness).layout
        self.engine = Engine(chain, SearchSpace(BITS), layout, config, total_steps)
        self.slowness = [1.0] * len(chain.workers)
        self._true_workers = list(chain.workers)
        self.rates: Callable[[float], list[Rates]] = lambda _seconds: hops(chain)
        self.noise = 0.0
        self.seconds = 0.0
        self.steps = 0.0
        self.decisions: list[tuple[float, Decision]] = []
        self._draw = random.Random(0)
        self._still_seconds = 0.0

    def true_chain(self) -> Profile:
        """Return the current profile of devices and links."""
        workers = [worker.slowed(slow) for worker, slow in zip(self._true_workers, self.slowness, strict=True)]
        return linked(replace(self.chain, workers=tuple(workers)), self.rates(self.seconds))

    def change_stage(self, place: int, seconds: Callable[[int, int], float]) -> None:
        """Have a stage take other times from now on, by the blocks [first, stop)."""
        worker = self._true_workers[place]
        table = worker.replayed.copy()
        for first, stop in np.argwhere(np.isfinite(table)).tolist():
            table[first, stop] = seconds(first, stop)
        self._true_workers[place] = replace(worker, replayed=table)

    def pin(self, cuts: tuple[int, ...] | None = None, bits: int | None = None) -> None:
        """Hold cuts and width."""
        self.engine.constrain(SearchSpace(BITS if bits is None else (bits,), cuts=cuts))

    def true_seconds(self, layout: Layout) -> float:
        """Return today's seconds of a step of a layout."""
        chain = self.true_chain()
        return float(loads_of(chain, [layout]).seconds(conditions_of(chain))[0])

    def best_seconds(self) -> float:
        """A step of the best partition now."""
        return plan_chain(self.true_chain(), BITS, self.staleness).seconds_per_step

    def run(self, seconds: int) -> None:
        """Train for so long, and do what the engine decides."""
        for _ in range(seconds):
            before = int(self.steps)
            self._train_for_a_second()
            decision = self.engine.observe(self._seen(before))
            if (search := self.engine.next_search()) is not None:
                self.engine.weigh(search.question, search.run())
            if decision is not None:
                self.decisions.append((self.seconds, decision))
                self._still_seconds = decision.migration_seconds
                self.engine.note_deployed(self.seconds, decision.layout)

    def keep(self, seconds: int) -> None:
        """Train for so long with today's layout, and ask nobody."""
        for _ in range(seconds):
            self._train_for_a_second()

    def _train_for_a_second(self) -> None:
        working = max(0.0, 1.0 - self._still_seconds)
        self._still_seconds = max(0.0, self._still_seconds - 1.0)
        self.steps += working * self._noisy(1.0 / self.true_seconds(self.engine.layout))
        self.seconds += 1.0

    def _seen(self, steps_before: int) -> Observation:
        chain, layout = self.true_chain(), self.engine.layout
        work = {
            tile.worker: self._noisy(float(chain.worker(tile.worker).replayed[tile.first, tile.stop]))
            for tile in layout.tiles
        }
        rates = {}
        for (near, far), link in zip(pairwise(self.chain.names), self.rates(self.seconds), strict=True):
            rates |= {(near, far): self._noisy(link.uplink), (far, near): self._noisy(link.downlink)}
        return Observation(self.seconds, int(self.steps), rates, work=work if int(self.steps) > steps_before else {})

    def _noisy(self, number: float) -> float:
        return number * float(np.clip(self._draw.gauss(1.0, self.noise), 0.5, 1.5))
