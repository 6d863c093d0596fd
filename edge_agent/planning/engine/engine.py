"""The decision engine: it gets measurements, and says when to change the layout. It has no clock and no threads.

The planners find the best layout for given rates. The engine adds what they leave out (paper 000, 4.4 and 4.5): rates
are noisy, the profile ages, a change costs, and the link may be back in a moment. Its rules:

- Layouts (field.py, pool.py) are compared by the steps each would have done over the last minute (beliefs.py). All are weighed
  where they are few; otherwise those that a search finds for the conditions of the last minutes (generating.py).
- A change, with its move (moves.py), must pay over the steps until the next event (horizon.py). choosing.py has the rules.
- The ledger (ledger.py) bounds the risk, and names what is proven and therefore no risk: layouts, and experts that
  follow the link from one to another (experts.py).
- A link that got slow comes back, and a device that changed stays changed (devices.py): so the answer to a device goes
  without the account, a few times a worker in the time of proof.
- Workers that were left out return where that is worth a checkpoint (returning.py).

A decision is a proposal until `note_deployed` answers it: with the proposed layout, or with the old one after a
failed change. Until then the engine only listens.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice

from edge_agent.planning.cost import Conditions, conditions_of
from edge_agent.planning.engine.beliefs import Beliefs
from edge_agent.planning.engine.cause import cause_of
from edge_agent.planning.engine.choosing import ChosenContender, Contenders, choose, leave
from edge_agent.planning.engine.config import EngineConfig
from edge_agent.planning.engine.decision import Decision, Observation, Outcome, Reason
from edge_agent.planning.engine.devices import FreeAnswers
from edge_agent.planning.engine.field import Field
from edge_agent.planning.engine.generating import Search, Searches, most_generated
from edge_agent.planning.engine.horizon import Horizon
from edge_agent.planning.engine.ledger import Ledger
from edge_agent.planning.engine.measuring import Usual
from edge_agent.planning.engine.pool import Pool, generated_pool, is_measured, pool_for
from edge_agent.planning.engine.returning import worthy_return
from edge_agent.planning.families.question import Question
from edge_agent.planning.layout import Layout
from edge_agent.planning.plan import Plan
from edge_agent.planning.profile import Profile, WorkerProfile
from edge_agent.planning.search import step_seconds
from edge_agent.planning.space import SearchSpace
from shared.errors import PlanError

FIRST_INTERVAL_SECONDS = 1.0
"""Length assumed for the time before the first observation."""


class Engine:
    """The decisions of one run, and its beliefs and debts between two observations."""

    def __init__(
        self,
        profile: Profile,
        space: SearchSpace,
        layout: Layout,
        config: EngineConfig | None = None,
        total_steps: float = math.inf,
    ) -> None:
        """layout: of the beginning. Without a largest K in the profile, its K stays. total_steps: after which the run ends,
        infinite if unknown. PlanError where nothing can be chosen, and where `layout` was not measured.
        """
        self.config = config or EngineConfig()
        self._total_steps = total_steps
        self._ledger = Ledger(self.config, 0, 0)
        """The account of the whole run: neither other choices nor another trainer make a debt good."""
        self._begin(profile, space, layout)

    def hand_over(self, profile: Profile, space: SearchSpace, layout: Layout) -> None:
        """Go on with another trainer: what is known of the device, and what is owed, stays.

        profile: of the device and that trainer. PlanError as at the beginning, and then nothing is changed.
        """
        known = self._beliefs.devices
        self._begin(profile.with_worker(self.question.profile.workers[0]), space, layout)
        self._beliefs.devices.take_over(0, known)

    def _begin(self, profile: Profile, space: SearchSpace, layout: Layout) -> None:
        if profile.max_staleness is None:
            profile = replace(profile, max_staleness=layout.staleness)
        if not is_measured(profile, layout):
            raise PlanError(
                f"the profile has nothing measured for {layout}, with which the run begins; measure it first"
            )
        question = Question(profile, space)
        pool = pool_for(question, [layout], conditions_of(profile))
        self.layout, self.names = layout, profile.names
        self.question = question
        """Present question: another object whenever other layouts may be chosen, or workers were measured again."""
        self._at_first: Conditions | None = None
        """Conditions that were believed at the first observation of today's layout; None before it."""
        self._measured_again: set[str] = set()
        """Workers whose times were measured since."""
        self._beliefs = Beliefs(self.config.window_seconds, self.config.memory_seconds, profile)
        self._field = Field(self.config, self._beliefs, self._ledger)
        self._field.begin(pool, layout)
        self._horizon = Horizon(self.config.margin, self.config.horizon_beta)
        self._answers = FreeAnswers(self.config.proof_seconds)
        self._searches = Searches()
        self._seconds: float | None = None
        self._changed_seconds = self._steady_seconds = self._refused_seconds = -math.inf
        self._step = 0
        self._is_running = False
        self._proposal: Decision | None = None
        self._is_for_good = False
        self._elsewhere: Outcome | None = None
        """Steps with a layout that the profile does not know; None while it knows today's."""
        self._outcome = Outcome(math.nan)
        self._measuring_seconds = 0.0
        """Seconds of measuring since the last observation."""

    def constrain(self, space: SearchSpace) -> None:
        """Choose from another space from now on: an operator so pins cuts, bits or K, and releases them, and a worker is lost.

        If today's layout is not in the space, the next observation proposes the best that is, whatever it costs.
        PlanError if it leaves nothing to choose, and then nothing is changed.
        """
        question = replace(self.question, space=space)
        pool = pool_for(question, [self.layout], self.conditions)
        self.question = question
        self._field.begin(pool, self.layout)
        self._searches.forget()

    def observe(self, seen: Observation) -> Decision | None:
        """Take in an observation. Returns a change to make, or None. Each change needs an answer."""
        seconds, step = seen.seconds, seen.step
        if self._seconds is None:
            self._seconds, self._step = seconds - FIRST_INTERVAL_SECONDS, step
            self._horizon.begin(step)
        if step < self._step:  # The run went back to a checkpoint, and does these steps again.
            self._step = step
            self._horizon.go_back(step)
        since, self._seconds = seconds - self._seconds, seconds
        done_steps, self._step = step - self._step, step
        if since <= 0.0:
            return None
        if changed := self._beliefs.note_work(since, done_steps, seen, self._field.current):
            self._note_other_devices(changed)
        self._beliefs.note_links(since, seen, self._field.current)
        if self._at_first is None:
            self._at_first = self._beliefs.now
        self._count(since, done_steps)
        self._horizon.note(step, self._beliefs.mean_speeds, self.pool.allowed, self._field.current)
        if self._proposal is not None:
            return None
        self._is_for_good = False
        if not self._field.is_permitted:
            if seconds - self._refused_seconds >= self.config.dwell_seconds:
                self._propose(leave(self._contenders(), self.pool.same_but_staleness(self._field.current)))
        elif seconds - self._changed_seconds >= self.config.dwell_seconds:
            chosen = choose(self._contenders(), self._field.ledger, self.config, self._field.experts)
            if chosen is not None and chosen.row == self._field.current:
                self._field.make_home()
            elif chosen is not None:
                self._propose(chosen)
        return self._proposal

    def _contenders(self) -> Contenders:
        """Return the layouts as they stand now."""
        if not self._horizon.is_behind:  # today's layout is right for the devices as they are
            self._answers.due.clear()
        return self._field.contenders(
            self._horizon.steps(self._step, self._total_steps),
            self._remaining_steps(),
            is_behind=self._horizon.is_behind,
            answers_a_device=bool(self._answers.due),
        )

    def _propose(self, chosen: ChosenContender) -> None:
        today, wanted = self._field.current, self.pool[chosen.row]
        there, here = self._beliefs.mean_speeds[[chosen.row, today]].tolist()
        cause = "the layout before may not be chosen any more"
        if chosen.reason is not Reason.PIN and self._at_first is not None:
            layouts, now = (self.layout, wanted), self._beliefs.now
            cause = cause_of(self.question, layouts, self._at_first, now, self.config.margin, self._measured_again)
        self._is_for_good = chosen.is_for_good
        self._proposal = Decision(
            wanted,
            1.0 / there,
            1.0 / here,
            self._field.moves.moving_seconds(today, chosen.row),
            chosen.abandon_after_seconds,
            chosen.reason,
            cause,
        )

    def _note_other_devices(self, workers: Collection[int]) -> None:
        assert self._seconds is not None
        self._answers.note_changed(workers, self._seconds)
        self._field.ledger.forget()
        self._searches.forget()

    @property
    def pool(self) -> Pool:
        """Return the layouts that are weighed now."""
        return self._field.pool

    @property
    def home(self) -> Layout:
        """Return the layout against which losses are counted: the first one, or one that has proved better for good."""
        return self._field.home

    @property
    def predicted_seconds(self) -> float:
        """Predict the seconds a step of today's layout, by what is believed of devices and links now."""
        return step_seconds(self.question, self.layout, self.conditions)

    @property
    def is_elsewhere(self) -> bool:
        """Tell whether a layout is in force that the profile does not know, as recovery may choose it."""
        return self._elsewhere is not None

    @property
    def conditions(self) -> Conditions:
        """Return the present conditions, as they were measured before the first observation."""
        return conditions_of(self.question.profile) if self._seconds is None else self._beliefs.now

    @property
    def prediction_ratios(self) -> dict[str, float]:
        """Return the seconds of each worker in its last window of steps over those expected then; 0 before one."""
        return dict(zip(self.names, self._beliefs.devices.off.tolist(), strict=True))

    @property
    def misfits(self) -> tuple[str, ...]:
        """Name the workers that one factor does not bring right: `measured_again` wants new times of them."""
        return tuple(self.names[place] for place in sorted(self._beliefs.devices.misfits))

    def usual(self, name: str) -> Usual | None:
        """Return what a worker's steps take now; None if it has no blocks of whole batches, or its steps are not as usual."""
        place = self._beliefs.places[name]
        run = next(((tile.first, tile.stop) for tile in self.layout.tiles if tile.worker == name), None)
        devices, is_changing = self._beliefs.devices, self._proposal is not None or self._seconds is None
        if run is None or self.pool.runs is None or is_changing or not devices.is_usual(place):
            return None
        seconds = self.pool.work_seconds(self._field.current, ())[place]
        return Usual(run, seconds * float(devices.factors[place]))

    def note_measuring(self, waited_seconds: float) -> None:
        """Note that training waited for the engine's own measuring since the last observation: it is on the account."""
        self._measuring_seconds += waited_seconds

    def measured_again(self, worker: WorkerProfile) -> None:
        """Use these times of a worker, taken today, instead of the profile's."""
        place = self._beliefs.places[worker.name]
        self.question = replace(self.question, profile=self.question.profile.with_worker(worker))
        self._beliefs.devices.measured_again(place)
        self._measured_again.add(worker.name)
        if self._at_first is not None:
            factors = self._at_first.factors.copy()
            factors[place] = self._beliefs.now.factors[place]
            self._at_first = replace(self._at_first, factors=factors)
        self._field.go_on(pool_for(self.question, [self.layout, *self._held], self.conditions), self.layout)
        self._beliefs.begin_again(self._field.current)
        self._note_other_devices({place})

    def keep_factor(self, name: str) -> None:
        """Keep the factor of a worker that is not to be measured again, until it is off once more."""
        self._beliefs.devices.misfits.discard(self._beliefs.places[name])

    def next_search(self) -> Search | None:
        """Return a search that is to be made now, for `weigh`; None if none is due, or all layouts are weighed."""
        if self._seconds is None:
            return None
        return self._searches.next(self._seconds, self.question, self.pool, self._beliefs)

    def weigh(self, question: Question, layouts: Sequence[Layout]) -> None:
        """Weigh the layouts that a search for a question has found, besides those that the run has or had.

        Those for a former question are dropped. Of the layouts that were weighed until now, as many stay as there is room for,
        because a lead is proven over minutes.
        """
        if question is not self.question:
            return
        weighed = islice(dict.fromkeys([*layouts, *self.pool.layouts]), most_generated(question))
        pool = generated_pool(question, weighed, [self.layout, *self._held], self.conditions)
        self._field.go_on(pool, self.layout)

    @property
    def _held(self) -> list[Layout]:
        """List the layouts that matter whatever a search finds."""
        proposed = [] if self._proposal is None else [self._proposal.layout]
        return [self.home, *proposed, *(self.pool[row] for row in self._field.experts.held)]

    def propose_return(self, question: Question, found: Plan) -> Decision | None:
        """Propose the layout that a `return_search` has found, if it is worth that all workers restore a checkpoint for it.

        It is one with workers that are back, or any where the profile does not know today's. question: of the time of the
        search. For a former one nothing is proposed.
        """
        is_new = self.is_elsewhere or not set(found.layout.workers) <= set(self.question.permitted)
        if question is not self.question or self._proposal is not None or not is_new:
            return None
        if self._elsewhere is None:
            today_seconds, cause = self.predicted_seconds, "a trainer that was left out is back"
        else:
            today_seconds = self._elsewhere.measured_seconds_per_step
            cause = "nothing was measured for the layout that recovery has chosen"
        self._proposal = worthy_return(found, today_seconds, self._remaining_steps(), self.config.margin, cause)
        self._is_for_good = self._proposal is not None
        return self._proposal

    def note_standstill(self, seconds: float, step: int) -> None:
        """Skip the time until now, in which training stood still, or had a layout that is not known here.

        It stood still since its last step, though the reason, as a lost link, may have shown only now.
        """
        if self._seconds is not None:
            if step < self._step:
                self._horizon.go_back(step)
            self._seconds, self._step = seconds, step
            for each in (self._beliefs, self._field.ledger, self._outcome):
                each.forget_wait()

    def note_elsewhere(self, seconds: float, step: int) -> None:
        """Count the steps until now, done with a layout that the profile does not know. Its first call begins."""
        if self._elsewhere is None:
            self._elsewhere = Outcome(math.nan)
        elif self._seconds is not None and step >= self._step:
            self._elsewhere.add(seconds - self._seconds, 0.0, step - self._step)
        self.note_standstill(seconds, step)

    def note_deployed(self, seconds: float, layout: Layout) -> None:
        """Note that training continues with `layout`: the proposed one, the old one after a change was given up, or an
        operator's."""
        was, proposal = self.layout, self._proposal
        self.layout, self._proposal, self._elsewhere = layout, None, None
        is_proposed = proposal is not None and layout == proposal.layout
        if proposal is not None and proposal.reason is Reason.DEVICE:  # an attempt that was given up counts, too
            self._answers.note_given(seconds)
        self._outcome = Outcome(proposal.seconds_per_step if proposal and is_proposed else math.nan)
        self._changed_seconds = seconds
        self._field.ledger.keep_wait()
        if layout == was:
            self._refused_seconds = seconds
            self._field.ledger.forget()
            self._field.experts.begin(self._field.current)
        else:
            self._at_first = None
            self._measured_again.clear()
            self._beliefs.devices.begin()
            if layout not in self.pool:
                self.constrain(self.question.space)
            self._field.current = self.pool.index(layout)
            if self._is_for_good or not is_proposed or not self.pool.allowed[self._field.ledger.home]:
                self._field.make_home()
        filling_seconds = 0.0  # ample time until the pipeline runs evenly again
        if self._seconds is not None:  # an operator may act before the first observation
            filling_seconds = 2.0 * float(self.pool.loads.at(self._beliefs.now).total[self._field.current])
        self._steady_seconds = seconds + self.config.dwell_seconds + filling_seconds

    def outcome(self) -> Outcome | None:
        """Return the outcome of the last change, for the record of predictions; None until a step was done since."""
        return self._outcome if self._outcome.is_known else None

    def _remaining_steps(self) -> float:
        """Return the steps still to come; as many as were done if that is unknown."""
        return max(0.0, self._total_steps - self._step) if math.isfinite(self._total_steps) else float(self._step)

    def _count(self, seconds: float, done_steps: int) -> None:
        """Compare the expected steps of the last `seconds` with those done. Nothing counts before the first step."""
        self._is_running = self._is_running or done_steps > 0
        if not self._is_running:
            return
        measuring_seconds, self._measuring_seconds = min(self._measuring_seconds, seconds), 0.0
        trained_seconds = seconds - measuring_seconds
        if self._proposal is None and self._seconds is not None and self._seconds >= self._steady_seconds:
            self._beliefs.note_steps(trained_seconds, done_steps, self._field.current)
        self._field.record(seconds, done_steps, measuring_seconds, is_moving=self._proposal is not None)
        speed = float(self._beliefs.speeds[self._field.current])
        self._outcome.add(trained_seconds, trained_seconds * speed, done_steps)
