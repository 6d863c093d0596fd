"""Runs of three tiers under their engine, a second after another, as the simulator says; tests set devices and links."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_agent.planning import (
    Conditions,
    Decision,
    Engine,
    EngineConfig,
    Layout,
    Observation,
    Profile,
    Question,
    SearchSpace,
    best,
    conditions_of,
    load_profile,
)
from edge_agent.planning.cost import computing_seconds
from edge_agent.planning.search import step_seconds

DEMO = load_profile(Path(__file__).parents[3] / "edge_agent" / "demo" / "tiers.json")
"""Five blocks and batches of 32, of which all three workers have a part."""


class TiersTraining:
    """A run whose devices take `slowness` times what was measured, and whose links carry `rates` times as much."""

    def __init__(
        self,
        profile: Profile = DEMO,
        space: SearchSpace | None = None,
        start: Layout | None = None,
        config: EngineConfig | None = None,
        total_steps: float = 100_000,
    ) -> None:
        self.profile = replace(profile, max_staleness=profile.max_staleness or 0)
        self.question = Question(self.profile, space or SearchSpace((32,)))
        self.start = start or best(self.question).layout
        self.engine = Engine(self.profile, self.question.space, self.start, config, total_steps)
        workers = len(profile.workers)
        self.slowness, self.rates = np.ones(workers), np.ones((workers, workers))
        self.noise = self.seconds = self.steps = 0.0
        self.decisions: list[tuple[float, Decision]] = []
        self._draw = random.Random(0)
        self._still_seconds = 0.0
        self._known: dict[object, float] = {}

    @property
    def now(self) -> Conditions:
        """Return today's links and devices."""
        measured = conditions_of(self.profile)
        return replace(measured, rates=measured.rates * self.rates, factors=self.slowness)

    def true_seconds(self, layout: Layout) -> float:
        """Return today's seconds of a step of a layout."""
        key = layout, self.slowness.tobytes(), self.rates.tobytes()
        if key not in self._known:
            self._known[key] = step_seconds(self.question, layout, self.now)
        return self._known[key]

    def best_seconds(self) -> float:
        """Return those of the best division now."""
        return best(self.question, self.now).seconds_per_step

    def run(self, seconds: int) -> None:
        """Train for so long, and do what the engine decides."""
        for _ in range(seconds):
            before, layout = int(self.steps), self.engine.layout
            working = max(0.0, 1.0 - self._still_seconds)
            self._still_seconds = max(0.0, self._still_seconds - 1.0)
            self.steps += working * self._noisy(1.0 / self.true_seconds(layout))
            self.seconds += 1.0
            decision = self.engine.observe(self._seen(layout, int(self.steps) > before))
            if (search := self.engine.next_search()) is not None:
                self.engine.weigh(search.question, search.run())
            if decision is not None:
                self.decisions.append((self.seconds, decision))
                self._still_seconds = decision.migration_seconds
                self.engine.note_deployed(self.seconds, decision.layout)

    def _seen(self, layout: Layout, is_working: bool) -> Observation:
        names, now = self.profile.names, self.now
        rates = {
            (near, far): self._noisy(float(now.rates[a, b]))
            for a, near in enumerate(names)
            for b, far in enumerate(names)
            if a != b
        }
        computing = computing_seconds(self.profile, layout) if is_working else {}
        work = {names[place]: self._noisy(each * self.slowness[place]) for place, each in computing.items()}
        return Observation(self.seconds, int(self.steps), rates, work=work)

    def _noisy(self, number: float) -> float:
        return number * float(np.clip(self._draw.gauss(1.0, self.noise), 0.5, 1.5))
