"""The field: the layouts that are weighed now, where the run is among them, and what each has proved.

The pool changes with an operator's pins, with searches, and with new times of a worker. What is known of layouts is kept by
their rows, so beliefs, moves, experts and the ledger change with the pool, all at once and here alone.
"""

import numpy as np

from edge_agent.planning.engine.beliefs import Beliefs
from edge_agent.planning.engine.choosing import Contenders
from edge_agent.planning.engine.config import EngineConfig
from edge_agent.planning.engine.experts import Experts
from edge_agent.planning.engine.ledger import Ledger
from edge_agent.planning.engine.moves import Moves
from edge_agent.planning.engine.pool import Pool
from edge_agent.planning.layout import Layout


class Field:
    """The field of one run. The attributes below exist after `begin`."""

    pool: Pool
    current: int
    """Row of today's layout."""
    moves: Moves
    experts: Experts

    def __init__(self, config: EngineConfig, beliefs: Beliefs, ledger: Ledger) -> None:
        """ledger: of the run."""
        self._config, self._beliefs, self.ledger = config, beliefs, ledger

    def begin(self, pool: Pool, today: Layout) -> None:
        """Weigh these layouts, none of which has proved anything. Today's is home."""
        self._weigh(pool, today)
        self.experts = Experts(self.current, pool.staleness, self._config.dwell_seconds)
        self.ledger.begin(self.current, len(pool) + len(self.experts))

    def go_on(self, pool: Pool, today: Layout) -> None:
        """Weigh other layouts, home and the experts' places among them. Debts, proofs and experts stay."""
        home, rows, count = pool.index(self.home), pool.rows_in(self.pool), len(self.pool)
        self._weigh(pool, today)
        self.ledger.consider(home, np.append(rows, count + np.arange(len(self.experts))))
        self.experts.consider(rows, pool.staleness, self._beliefs.mean_speeds)

    def _weigh(self, pool: Pool, today: Layout) -> None:
        self.pool, self.current = pool, pool.index(today)
        self.moves = Moves(pool, self._beliefs)
        self._beliefs.consider(pool, self.current)

    @property
    def home(self) -> Layout:
        """Return the layout against which losses are counted."""
        return self.pool[self.ledger.home]

    @property
    def is_permitted(self) -> bool:
        """Tell whether today's layout may be chosen."""
        return bool(self.pool.allowed[self.current])

    def make_home(self) -> None:
        """Call today's layout home."""
        self.ledger.set_home(self.current)
        self.experts.begin(self.current)

    def record(self, seconds: float, done_steps: int, measuring_seconds: float, *, is_moving: bool) -> None:
        """Enter the steps done in the last `seconds`, beside those of all layouts and experts, and what measuring has cost."""
        speeds, is_at_home = self._beliefs.speeds, not is_moving and self.current == self.ledger.home
        now = self._beliefs.now
        played = self.experts.play(seconds, speeds, self.pool.allowed, lambda start: self.moves.there(start, now))
        self.ledger.record(seconds, np.append(speeds, played), done_steps, is_at_home=is_at_home)
        if is_at_home:
            self.ledger.charge(measuring_seconds)

    def contenders(
        self, horizon_steps: float, remaining_steps: float, *, is_behind: bool, answers_a_device: bool
    ) -> Contenders:
        """Return the layouts as they stand now. The arguments are as in `Contenders`."""
        pool, beliefs, current, home = self.pool, self._beliefs, self.current, self.ledger.home
        usual = 0.0 if current == home else float(self.moves.there(current, beliefs.usual)[home])
        return Contenders(
            current=current,
            allowed=pool.allowed,
            speeds=beliefs.speeds,
            mean_speeds=beliefs.mean_speeds,
            there=self.moves.there(current),
            back=self.moves.back(home),
            usual_home_seconds=usual,
            horizon_steps=horizon_steps,
            remaining_steps=remaining_steps,
            is_behind=is_behind,
            is_settled=beliefs.devices.is_settled(1.0 / float(beliefs.speeds[current])),
            answers_a_device=answers_a_device,
            only_fills=pool.same_but_staleness(current) & (pool.staleness > pool.staleness[current]),
            sends=pool.loads.sends(),
        )
